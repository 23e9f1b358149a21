// The real packages as a process: one request a line on stdin, one answer a line on stdout, in order.
//
//   node driver.mjs NODE_MODULES
//   {"do": name, "cases": [...]}  ->  {"answers": [...]}, one for each case, or {"failed": text} for a fault in here
//
// What a package refuses is an answer, {"error": {"name", "message"}}. Lines are ASCII on the way in, so that lone
// surrogates survive; on the way out JSON.stringify escapes them. What JSON cannot hold travels as {"$js": name}.

import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const root = resolve(process.argv[2]);
// By path: the packages are not above this file, and their export maps leave diff.js out.
const load = (...parts) => import(pathToFileURL(join(root, "@earendil-works", ...parts)).href);

const chord = await load("chord", "dist", "delta", "index.js");
const { diffRevisions } = await load("chord", "dist", "state", "diff.js");
const { AssistantMessageFrameEncoder, reduceAssistantMessageFrames } = await load(
	"pi-ai", "dist", "utils", "assistant-message-frame.js",
);
const { parseStreamingJson } = await load("pi-ai", "dist", "utils", "json-parse.js");

// ─── Values ──────────────────────────────────────────────────────────────────

const tagged = (_key, value) => {
	if (value === undefined) return { $js: "undefined" };
	if (typeof value === "number" && (!Number.isFinite(value) || Object.is(value, -0))) {
		return { $js: Object.is(value, -0) ? "-0" : String(value) };
	}
	return value;
};

const UNTAGGED = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity, "-0": -0, undefined: undefined };

const untag = (value) => {
	if (value === null || typeof value !== "object") return value;
	if (Object.hasOwn(value, "$js")) return UNTAGGED[value.$js];
	for (const key of Object.keys(value)) value[key] = untag(value[key]); // an own __proto__ is assigned as any other
	return value;
};

const text = (value) => JSON.stringify(value, tagged);
const copy = (value) => structuredClone(value);

const sorted = (value) => {
	if (value === null || typeof value !== "object") return value;
	if (Array.isArray(value)) return value.map(sorted);
	return { members: Object.keys(value).sort().map((key) => [key, sorted(value[key])]) };
};
const same = (left, right) => text(sorted(left)) === text(sorted(right));

const refusal = (error) => ({ error: { name: error.name, message: error.message } });

const attempt = (action) => {
	try {
		return { value: action() };
	} catch (error) {
		return refusal(error);
	}
};

// ─── Mutations as data ───────────────────────────────────────────────────────

const at = (node, path) => path.reduce((inner, segment) => inner[segment], node);

function play(tracker, step, held) {
	const path = step.path ?? [];
	switch (step.do) {
		case "root":
			tracker.state = step.value;
			return;
		case "rebase":
		case "discard":
			tracker[step.do]();
			return;
		case "hold":
			held.set(step.as, at(tracker.state, path));
			return;
		case "heldset":
			held.get(step.as)[step.key] = step.value;
			return;
		case "set":
		case "append":
		case "slice":
		case "delete":
		case "undef":
			playSlot(at(tracker.state, path.slice(0, -1)), path.at(-1), step);
			return;
		default:
			playList(at(tracker.state, path), step);
	}
}

function playSlot(node, key, step) {
	switch (step.do) {
		case "set":
			node[key] = step.value;
			return;
		case "append":
			node[key] += step.text;
			return;
		case "slice":
			node[key] = node[key].slice(step.drop) + (step.text ?? "");
			return;
		case "delete":
			delete node[key];
			return;
		case "undef":
			node[key] = undefined;
	}
}

function playList(list, step) {
	switch (step.do) {
		case "push":
		case "unshift":
			list[step.do](...step.items);
			return;
		case "length":
			list.length = step.value;
			return;
		case "pop":
		case "shift":
		case "splice":
		case "fill":
		case "copyWithin":
		case "sort":
		case "reverse":
			list[step.do](...(step.args ?? []));
			return;
		default:
			throw new RangeError(`no such step: ${step.do}`);
	}
}

// ─── What can be asked, each of one case ─────────────────────────────────────

const actions = {
	/** Both appliers: {target?, ops}. `after`: the target as the mutable one left it. */
	apply({ target, ops }) {
		const mutable = copy(target);
		const before = copy(target);
		const first = attempt(() => chord.apply(mutable, copy(ops)));
		const second = attempt(() => chord.applyImmutable(target, copy(ops)));
		return { mutable: copy(first), after: copy(mutable), immutable: second, kept: same(target, before) };
	},

	encode({ batches }) {
		const encoder = chord.encoder();
		return batches.map((batch) => encoder.encode(batch));
	},

	/** Batches up to the first that is refused. */
	decode({ wire }) {
		const decoder = chord.decoder();
		const batches = [];
		for (const batch of wire) {
			const outcome = attempt(() => decoder.decode(batch));
			if (outcome.error) return { batches, ...outcome };
			batches.push(outcome.value);
		}
		return { batches };
	},

	/** A replica fed with what the other side encoded: its value after every batch. */
	replay({ wires, reencoded = true }) {
		const decoder = chord.decoder();
		const encoder = chord.encoder();
		const values = [];
		let replica;
		let immutable;
		for (const wire of wires) {
			const ops = decoder.decode(wire);
			if (reencoded && text(encoder.encode(ops)) !== text(wire)) return { differs: "encoder", wire, at: values.length };
			immutable = chord.applyImmutable(immutable, copy(ops));
			replica = chord.apply(replica, ops);
			if (!same(replica, immutable)) return { differs: "applyImmutable", at: values.length };
			values.push(copy(replica));
		}
		return { values };
	},

	/** Mutations of a tracked value: the encoded batches, its value at each flush, and the steps that were refused. */
	play({ initial, steps, options }) {
		const tracker = chord.track(initial, options ?? {});
		const encoder = chord.encoder();
		const held = new Map();
		const answer = { wires: [], values: [], refused: {} };
		steps.forEach((step, number) => {
			if (step.do === "flush") {
				answer.wires.push(copy(encoder.encode(tracker.flush())));
				answer.values.push(copy(tracker.target));
				return;
			}
			const outcome = attempt(() => play(tracker, step, held));
			if (outcome.error) answer.refused[number] = outcome.error;
		});
		return answer;
	},

	/** Revisions of an immutable value, made by ops: what leads from each to the next, encoded. */
	revise({ first, batches }) {
		const encoder = chord.encoder();
		const answer = { wires: [encoder.encode([["r", first]])], values: [first] };
		let value = first;
		for (const ops of batches) {
			const next = chord.applyImmutable(value, ops);
			answer.wires.push(encoder.encode(diffRevisions(value, next)));
			answer.values.push(next);
			value = next;
		}
		return answer;
	},

	/** The fold of the frames, and of all that begins them if asked. */
	fold({ frames, prefixes }) {
		const from = prefixes ? 0 : frames.length;
		const answers = [];
		for (let end = from; end <= frames.length; end++) {
			answers.push(attempt(() => reduceAssistantMessageFrames(frames.slice(0, end))));
		}
		return answers;
	},

	/** Frames of events up to the first that is refused; null for none. */
	frames({ events }) {
		const encoder = new AssistantMessageFrameEncoder();
		const frames = [];
		for (const event of events) {
			const outcome = attempt(() => copy(encoder.encode(event)));
			if (outcome.error) return { frames, ...outcome };
			frames.push(outcome.value ?? null);
		}
		return { frames };
	},

	/** A tracked message that follows frames, flushed after as many of them as `sizes` says. */
	stream({ frames, sizes }) {
		const tracker = chord.track({ message: null });
		const encoder = chord.encoder();
		const answer = { wires: [], values: [] };
		const flush = () => {
			answer.wires.push(copy(encoder.encode(tracker.flush())));
			answer.values.push(copy(tracker.target));
		};
		flush();
		let taken = 0;
		for (const size of sizes) {
			for (const frame of frames.slice(taken, taken + size)) {
				taken++;
				const block = tracker.state.message?.content[frame.contentIndex];
				if (frame.type === "text_delta") block.text += frame.delta;
				else if (frame.type === "thinking_delta") block.thinking += frame.delta;
				else if (frame.type !== "toolcall_delta") tracker.state.message = reduceAssistantMessageFrames(frames.slice(0, taken));
			}
			flush();
		}
		return answer;
	},

	parse({ json }) {
		return parseStreamingJson(json);
	},
};

// ─── The conversation ────────────────────────────────────────────────────────

async function versions() {
	const version = async (name) => {
		const manifest = await readFile(join(root, "@earendil-works", name, "package.json"), "utf8");
		return JSON.parse(manifest).version;
	};
	return { node: process.versions.node, chord: await version("chord"), piAi: await version("pi-ai") };
}

async function answerTo(line) {
	let request = JSON.parse(line);
	if (line.includes('"$js"')) request = untag(request);
	if (request.do === "versions") return { answers: [await versions()] };
	return { answers: request.cases.map((one) => actions[request.do](one)) };
}

async function answered(line) {
	try {
		return text(await answerTo(line));
	} catch (error) {
		return JSON.stringify({ failed: String(error.stack ?? error) });
	}
}

let waiting = [];
for await (const chunk of process.stdin.setEncoding("utf8")) {
	const parts = chunk.split("\n");
	for (const part of parts.slice(0, -1)) {
		waiting.push(part);
		const line = waiting.join("");
		waiting = [];
		process.stdout.write(`${await answered(line)}\n`);
	}
	waiting.push(parts.at(-1));
}
