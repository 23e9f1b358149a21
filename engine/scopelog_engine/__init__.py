"""The storage engine under scopelog: knows bytes and records, nothing of messages, operations or memory.

Layout, from the disk upwards; no module imports one that stands below it in another group::

    pool, fs, clock                  the seams: open files, disk and time
    layout, errors, durability       names, magic numbers, limits; what can go wrong; what is promised
    frame, codec, elements, lines,   pure codecs: envelope, zstd, JSON values, commit lines,
      header, totals, stretch,         the file header, index frames and what they sum up, the stretch that is open,
      tail, batch                      frames to be written
    mdbpages, mdbproof, lmdbenv,     the index's file: read by plain reads, proved, written by LMDB, guarded
      lmdbfile
    blocks, tree, growth,            the index: what stands in it, what it says of a log, how that grows, checkpoints,
      logindex, index                  all of a store
    scan, survey, handle, answers,   reading: following the chain, finding the end, the open file, answering from a log
      view, info, glance               and telling what a session is without its history
    syncing, logfile, compact        writing one log: what is known to be on disk; append, roll back, close; anew
    lock, recovery, opening          taking a session over
    loops, workers, pace             event loops and threads: whom to wake, who may be held, how quick the disk is
    feeds, scope, staging, state,    a session: what watchers follow, what waits, how it is joined, what all its parts
      publishing, retiring, looping,   share, what watchers are told, how scopes end, what loops do for it, who stores,
      storing, reading, compacting,    how it is read, compacted, watched and written, by threads and by tasks
      watching, writer, awaiting
    reader, check, copying           other readers; proof of soundness; copies, and evidence thrown away
    position, cursor, lives, follow, following a session from another process: how far, each log, each life; learning
      notify                           when to look
    catalogue, rebuild               all sessions at a glance; the index derived again
    environment, store               a directory of sessions

Users import :mod:`scopelog`. Nothing here is public.
"""
