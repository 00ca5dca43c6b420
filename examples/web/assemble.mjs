// node assemble.mjs <page.wasm> <checkpoint of train_gpt> <model of train_translation> <page.html>
//
// Writes the page as one file, which a browser opens without a server: template.html with the module and the models, in
// base64. Of the checkpoint, only the model's parameters and the entries of its metadata that describe the model are
// kept: a third of its bytes.
import {readFileSync, writeFileSync} from 'node:fs';

const [wasm, checkpoint, translator, page] = process.argv.slice(2);
if (!page) {
  console.error('usage: node assemble.mjs <page.wasm> <checkpoint> <translator> <page.html>');
  process.exit(2);
}

/// Returns the checkpoint's parameters as a safetensors file.
function parametersOf(file) {
  const length = Number(file.readBigUInt64LE(0)), values = file.subarray(8 + length);
  const {__metadata__: metadata, ...tensors} = JSON.parse(file.subarray(8, 8 + length).toString());
  if (metadata?.format !== 'train_gpt') throw new Error(`${checkpoint}: train_gpt did not save this file`);
  const header = {__metadata__: {}}, parts = [];
  for (const key of ['characters', 'context', 'layers', 'heads', 'features']) header.__metadata__[key] = metadata[key];
  let end = 0;
  for (const [name, {dtype, shape, data_offsets: [from, to]}] of Object.entries(tensors)) {
    if (!(`m.${name}` in tensors)) continue;  // a moment of AdamW, or the losses
    header[name] = {dtype, shape, data_offsets: [end, end += to - from]};
    parts.push(values.subarray(from, to));
  }
  let text = Buffer.from(JSON.stringify(header));
  text = Buffer.concat([text, Buffer.alloc(-text.length & 7, ' ')]);
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([size, text, ...parts]);
}

const parts = {MODULE: readFileSync(wasm), WRITER: parametersOf(readFileSync(checkpoint)),
               TRANSLATOR: readFileSync(translator)};
const template = readFileSync(new URL('template.html', import.meta.url), 'utf8');
writeFileSync(page, template.replace(/@(MODULE|WRITER|TRANSLATOR)@/g, (_, name) => parts[name].toString('base64')));
const sizes = Object.entries(parts).map(([name, part]) => `${name.toLowerCase()} ${Math.round(part.length / 1024)} KiB`);
console.log(`${page}: ${sizes.join(', ')}`);
