// node compare.mjs <attention.node> --onnxruntime <folder> [--threads N] [--rounds N] [--rows REGEX]
//
// Times attention in turn with every operator of ONNX Runtime that computes it, MultiHeadAttention, Attention and
// GroupQueryAttention, on the same memory in one process, and compares the results. Prints GFLOP/s of attn and of the
// fastest of these operators, both from the least of their times. The folder is one in which `npm install
// onnxruntime-node` was run.
import {createRequire} from 'node:module';
import {cpus} from 'node:os';
import {join, resolve} from 'node:path';
import {parseArgs} from 'node:util';

import {attention, groupQueryAttention, multiHeadAttention} from './onnx_model.mjs';

const usage = 'usage: node compare.mjs <attention.node> --onnxruntime <folder> [--threads N] [--rounds N] [--rows REGEX]';
function fail(message) {
  console.error(message);
  process.exit(2);
}
let given;
try {
  const text = {type: 'string'};
  given = parseArgs({options: {onnxruntime: text, threads: text, rounds: text, rows: text}, allowPositionals: true});
} catch (error) {
  fail(`${error.message}\n${usage}`);
}
const {values: options, positionals} = given;
if (positionals.length !== 1 || !options.onnxruntime) fail(usage);
const positive = (name, usual) => {
  const n = Number(options[name] ?? usual);
  return Number.isInteger(n) && n > 0 ? n : fail(`--${name} must be a positive integer, not ${options[name]}`);
};
const threads = positive('threads', 1), rounds = positive('rounds', 15);
const wanted = new RegExp(options.rows ?? '');

const {attend} = createRequire(import.meta.url)(resolve(positionals[0]));
const ort = createRequire(join(resolve(options.onnxruntime), 'package.json'))('onnxruntime-node');

// 16-bit floats are bits in a Uint16Array.
function toHalf(x) {
  if (x === 0) return 0;
  const sign = x < 0 ? 0x8000 : 0, exponent = Math.max(-14, Math.floor(Math.log2(Math.abs(x))));
  return sign | (exponent === -14 && Math.abs(x) < 2 ** -14
    ? Math.round(Math.abs(x) * 2 ** 24)
    : ((exponent + 15) << 10) + Math.round((Math.abs(x) / 2 ** exponent - 1) * 1024));
}
function fromHalf(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
}
const arrays = {float32: Float32Array, float16: Uint16Array};
const values = (x) => (x instanceof Uint16Array ? Float32Array.from(x, fromHalf) : x);
function numbers(type, count, seed) {
  let state = seed;
  const next = () => (state = (state * 1103515245 + 12345) % 2147483648) / 1073741824 - 1;
  return arrays[type].from({length: count}, type === 'float16' ? () => toHalf(next()) : next);
}
function largestDifference(a, b) {
  let most = 0;
  for (let i = 0; i < a.length; ++i) most = Math.max(most, Number.isNaN(a[i] - b[i]) ? Infinity : Math.abs(a[i] - b[i]));
  return most;
}

/// Sessions of the operators that compute this work: {name, run, out}. An operator that refuses it is left out, with its
/// reason.
async function rivals({type, batch, heads, kvHeads, qLen, kvLen, dim, causal}, {q, k, v}, reasons) {
  const tensor = (data, ...shape) => new ort.Tensor(type, data, shape);
  const rows = (x, len, h) => tensor(x, batch, len, h * dim);
  const whole = {query: rows(q, qLen, heads), key: rows(k, kvLen, kvHeads), value: rows(v, kvLen, kvHeads)};
  const list = [];
  const add = async (name, bytes, feeds, fetches) => {
    try {
      const session = await ort.InferenceSession.create(bytes, {intraOpNumThreads: threads, interOpNumThreads: 1});
      const run = () => session.run(feeds, fetches);
      list.push({name, run, out: values((await run()).out.data)});
    } catch (error) {
      reasons.push(`${name}: ${error.message.split('\n')[0]}`);
    }
  };
  if (qLen > 1 || !causal) {
    if (heads === kvHeads) await add('MultiHeadAttention', multiHeadAttention(type, heads, causal), whole, ['out']);
    await add('Attention', attention(type, heads, kvHeads, causal), whole, ['out']);
  } else {
    const heads4 = (x, h, len) => tensor(x, batch, h, len, dim);
    const feeds = {query: heads4(q, heads, 1), key: heads4(k, kvHeads, kvLen), value: heads4(v, kvHeads, kvLen)};
    await add('Attention', attention(type, heads, kvHeads, false), feeds, ['out']);
  }
  if (causal) {
    // The cache holds all earlier tokens; the operator appends the call's tokens to it in place.
    const past = kvLen - qLen, size = batch * kvHeads * kvLen * dim;
    const cache = (name, x) => tensor(past ? x : new arrays[type](size), batch, kvHeads, kvLen, dim);
    const caches = {key: cache('key', k), value: cache('value', v)};
    // With a past, k and v are (batch, heads, len, dim); the new token is the last row of each head.
    const last = (x) => {
      if (!past) return x;
      const token = new arrays[type](batch * kvHeads * qLen * dim);
      for (let head = 0; head < batch * kvHeads; ++head)
        token.set(x.subarray(((head + 1) * kvLen - qLen) * dim, (head + 1) * kvLen * dim), head * dim);
      return token;
    };
    const ints = (x, ...shape) => new ort.Tensor('int32', x, shape);
    const feeds = {query: whole.query, key: rows(last(k), qLen, kvHeads), value: rows(last(v), qLen, kvHeads),
                   past_key: caches.key, past_value: caches.value,
                   seqlens_k: ints(new Int32Array(batch).fill(kvLen - 1), batch),
                   total_sequence_length: ints(Int32Array.of(kvLen), 1)};
    await add('GroupQueryAttention', groupQueryAttention(type, heads, kvHeads), feeds,
              {out: null, present_key: caches.key, present_value: caches.value});
  }
  return list;
}

async function compare(work) {
  const {name, type, batch, heads, kvHeads, qLen, kvLen, dim, causal} = work;
  const [q, k, v] = [qLen * heads, kvLen * kvHeads, kvLen * kvHeads].map((n, i) => numbers(type, batch * n * dim, i + 1));
  const out = new arrays[type](q.length);
  const call = {type, batch, heads, kvHeads, qLen, kvLen, dim, causal, threads, headsFirst: causal && qLen < kvLen};
  const ours = () => attend(out, q, k, v, call);
  ours();
  const reasons = [], others = await rivals(work, {q, k, v}, reasons);
  ours();
  const result = values(out);

  const pairs = causal ? qLen * (kvLen - (qLen - 1) / 2) : qLen * kvLen, flops = 4 * batch * heads * pairs * dim;
  const contestants = [{name: 'attn', run: ours}, ...others];
  // Each contestant runs for about 20 ms a round.
  for (const c of contestants) {
    const start = performance.now();
    await c.run();
    c.calls = Math.max(1, Math.round(20 / (performance.now() - start)));
    c.least = Infinity;
  }
  for (let round = 0; round < rounds; ++round)
    for (const c of contestants) {
      await new Promise((done) => setTimeout(done, 50));  // until the threads of the one before have stopped spinning
      for (let i = 0; i < c.calls; ++i) {
        const start = performance.now();
        await c.run();
        c.least = Math.min(c.least, performance.now() - start);
      }
    }
  const rate = (c) => flops / c.least / 1e6;
  const [attn, ...theirs] = contestants;
  const best = theirs.reduce((a, b) => (a.least <= b.least ? a : b), {name: 'none', least: Infinity});
  const ratio = best.least / attn.least;
  console.log([name.padEnd(44), rate(attn).toFixed(0).padStart(8), rate(best).toFixed(0).padStart(12),
               (Number.isFinite(ratio) ? ratio.toFixed(2) : '').padStart(8), `  ${best.name}`,
               theirs.length > 1 ? `(${theirs.filter((c) => c !== best).map((c) => `${c.name} ${rate(c).toFixed(0)}`)})` : ''
              ].join(''));
  for (const reason of reasons) console.log(`    ${reason}`);
  for (const c of theirs) {
    const difference = largestDifference(result, c.out);
    if (!(difference < (type === 'float16' ? 4e-3 : 2e-5))) {
      console.error(`${name}: attn and ${c.name} differ by ${difference}`);
      process.exitCode = 1;
    }
  }
}

const prompt = (batch, heads, len, dim, more = {}) => {
  const {type = 'float32', causal = false} = more;
  const name = `${batch > 1 ? `${batch} x ` : ''}${heads} heads, ${len} x ${len}, dim ${dim}`;
  return {name: `${name}${causal ? ', causal' : ''}${type === 'float16' ? ', half' : ''}`, type, batch, heads,
          kvHeads: heads, qLen: len, kvLen: len, dim, causal};
};
const token = (batch, heads, kvHeads, kvLen, dim, type = 'float32') => ({
  name: `${batch > 1 ? `${batch} x ` : ''}one token, ${heads} heads on ${kvHeads}, ${kvLen} keys, dim ${dim}${
    type === 'float16' ? ', half' : ''}`,
  type, batch, heads, kvHeads, qLen: 1, kvLen, dim, causal: true});
const works = [
  prompt(1, 8, 512, 64), prompt(1, 8, 2048, 64), prompt(1, 8, 4096, 64, {causal: true}), prompt(1, 8, 2048, 128),
  prompt(16, 8, 512, 128), prompt(1, 8, 2048, 128, {type: 'float16'}), prompt(32, 8, 64, 64), prompt(8, 12, 197, 64),
  token(1, 32, 8, 32768, 128), token(1, 32, 8, 32768, 128, 'float16'), token(16, 32, 8, 2048, 128),
];

console.log(`${cpus()[0].model}, ${threads} thread${threads > 1 ? 's' : ''}, GFLOP/s from the least time of each`);
console.log([''.padEnd(44), 'attn'.padStart(8), 'ONNX Runtime'.padStart(12), 'ratio'.padStart(8), '  operator'].join(''));
for (const work of works.filter((w) => wanted.test(w.name))) await compare(work);
