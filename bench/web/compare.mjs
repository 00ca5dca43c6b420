// node compare.mjs <attention.wasm> [--onnxruntime <folder>] [--quick]
//
// Times attention in WebAssembly, on one thread, in turn with onnxruntime-web's MultiHeadAttention on the same numbers,
// and compares the results. The folder is one in which `npm install onnxruntime-web` was run; without it, attn is timed
// alone and compared with a plain loop. Prints the module's size, compressed as a server sends it.
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {join, resolve} from 'node:path';
import {WASI} from 'node:wasi';
import {gzipSync} from 'node:zlib';

import {multiHeadAttention} from '../onnxruntime/onnx_model.mjs';

const [file, ...options] = process.argv.slice(2);
const folder = options.includes('--onnxruntime') ? options[options.indexOf('--onnxruntime') + 1] : undefined;
const known = options.every((o) => ['--onnxruntime', '--quick', folder].includes(o));
if (!file || !known || (options.includes('--onnxruntime') && (!folder || folder.startsWith('--')))) {
  console.error('usage: node compare.mjs <attention.wasm> [--onnxruntime <folder>] [--quick]');
  process.exit(2);
}
const quick = options.includes('--quick');

const module = readFileSync(file);
const wasi = new WASI({version: 'preview1'});
const instance = (await WebAssembly.instantiate(module, {wasi_snapshot_preview1: wasi.wasiImport})).instance;
wasi.initialize(instance);
const {allocate, release, attend, memory} = instance.exports;

let ort;
if (folder) {
  ort = createRequire(join(resolve(folder), 'package.json'))('onnxruntime-web/wasm');
  ort.env.wasm.numThreads = 1;
}

/// A plain loop over one head.
function plain(q, k, v, {heads, qLen, kvLen, dim, causal}) {
  const out = new Float32Array(heads * qLen * dim);
  for (let h = 0; h < heads; ++h)
    for (let i = 0; i < qLen; ++i) {
      const keys = causal ? kvLen - qLen + i + 1 : kvLen;
      const scores = Array.from({length: keys}, (_, j) => {
        let sum = 0;
        for (let d = 0; d < dim; ++d) sum += q[(h * qLen + i) * dim + d] * k[(h * kvLen + j) * dim + d];
        return sum / Math.sqrt(dim);
      });
      const most = Math.max(...scores), weights = scores.map((x) => Math.exp(x - most));
      const total = weights.reduce((a, b) => a + b);
      for (let d = 0; d < dim; ++d) {
        let sum = 0;
        for (let j = 0; j < keys; ++j) sum += weights[j] * v[(h * kvLen + j) * dim + d];
        out[(h * qLen + i) * dim + d] = sum / total;
      }
    }
  return out;
}

/// (heads, len, dim) to (len, heads * dim).
function headsLast(x, {heads, dim}) {
  const len = x.length / heads / dim, to = new Float32Array(x.length);
  for (let h = 0; h < heads; ++h)
    for (let i = 0; i < len; ++i)
      to.set(x.subarray((h * len + i) * dim, (h * len + i + 1) * dim), (i * heads + h) * dim);
  return to;
}

const medianOf = (x) => [...x].sort((a, b) => a - b)[x.length >> 1];
const largestDifference = (a, b) => a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i])), 0);

async function compare(work) {
  const {name, heads, qLen, kvLen, dim, causal} = work;
  const numbers = (len, seed) => Float32Array.from({length: heads * len * dim}, (_, i) => Math.sin(1.7 * i + seed));
  const [q, k, v] = [numbers(qLen, 1), numbers(kvLen, 2), numbers(kvLen, 3)];
  const at = [allocate(q.length), ...[q, k, v].map((x) => allocate(x.length))];
  [q, k, v].forEach((x, i) => new Float32Array(memory.buffer, at[i + 1], x.length).set(x));
  const ours = () => attend(...at, 1, heads, qLen, kvLen, dim, causal);
  ours();
  const out = new Float32Array(memory.buffer, at[0], q.length).slice();

  let theirs, difference;
  if (ort) {
    const model = multiHeadAttention('float32', heads, causal);
    const session = await ort.InferenceSession.create(model, {executionProviders: ['wasm']});
    const tensor = (x, len) => new ort.Tensor('float32', headsLast(x, work), [1, len, heads * dim]);
    const feeds = {query: tensor(q, qLen), key: tensor(k, kvLen), value: tensor(v, kvLen)};
    theirs = async () => (await session.run(feeds)).out.data;
    difference = largestDifference(headsLast(out, work), await theirs());
  } else {
    difference = largestDifference(out, plain(q, k, v, work));
  }

  const flops = 4 * heads * qLen * kvLen * dim * (causal && qLen > 1 ? 0.5 : 1);
  const calls = Math.max(1, Math.round((quick ? 1e7 : 5e8) / flops)), rounds = quick ? 3 : 11;
  const times = {attn: [], onnxruntime: []};
  for (let round = 0; round < rounds; ++round) {
    let start = performance.now();
    for (let i = 0; i < calls; ++i) ours();
    times.attn.push((performance.now() - start) / calls);
    if (!theirs) continue;
    start = performance.now();
    for (let i = 0; i < calls; ++i) await theirs();
    times.onnxruntime.push((performance.now() - start) / calls);
  }
  const ms = medianOf(times.attn);
  const columns = [name.padEnd(38), `${ms.toFixed(3)} ms`.padStart(12), (flops / ms / 1e6).toFixed(1).padStart(8)];
  if (ort) {
    const other = medianOf(times.onnxruntime);
    columns.push(`${other.toFixed(3)} ms`.padStart(14), (flops / other / 1e6).toFixed(1).padStart(8),
                 (other / ms).toFixed(2).padStart(8));
  }
  console.log(columns.join(''), difference.toExponential(1).padStart(12));
  at.forEach(release);
  if (!(difference < 2e-6)) {
    console.error(`${name}: results differ by ${difference}`);
    process.exitCode = 1;
  }
}

const works = [];
for (const dim of [32, 64, 128])
  for (const len of quick ? [128] : [128, 512, 1024, 2048])
    works.push({name: `${len} x ${len}, dim ${dim}`, heads: 1, qLen: len, kvLen: len, dim, causal: false});
for (const len of quick ? [512] : [512, 2048])
  works.push({name: `one token, 8 heads, ${len} keys, dim 64`, heads: 8, qLen: 1, kvLen: len, dim: 64, causal: false});
works.push({name: 'a step of the GPT, 48 heads of 64, dim 32', heads: 48, qLen: 64, kvLen: 64, dim: 32, causal: true});

console.log(`module: ${(gzipSync(module, {level: 9}).length / 1024).toFixed(1)} KiB compressed`);
const head = ['one thread'.padEnd(38), 'attn'.padStart(12), 'GFLOP/s'.padStart(8)];
if (ort) head.push('onnxruntime'.padStart(14), 'GFLOP/s'.padStart(8), 'ratio'.padStart(8));
console.log(head.join(''), 'difference'.padStart(12));
for (const work of works) await compare(work);
