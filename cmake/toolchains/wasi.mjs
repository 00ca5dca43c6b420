// node wasi.mjs <program.wasm> [<argument>...]: runs a WebAssembly program for WASI. The process ends as the program
// does; if the program aborts, so does the process.
import {readFileSync} from 'node:fs';
import {WASI} from 'node:wasi';

const args = process.argv.slice(2);
const wasi = new WASI({version: 'preview1', args, env: process.env, preopens: {'/': '/'}});
const program = await WebAssembly.compile(readFileSync(args[0]));
const instance = await WebAssembly.instantiate(program, {wasi_snapshot_preview1: wasi.wasiImport});
try {
  process.exitCode = wasi.start(instance);
} catch (error) {
  if (!(error instanceof WebAssembly.RuntimeError)) throw error;
  // abort() is the instruction `unreachable`; any other trap is reported by name.
  if (error.message !== 'unreachable') console.error(error.message);
  process.kill(process.pid, 'SIGABRT');
}
