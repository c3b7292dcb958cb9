// Times tiktoken (npm, WebAssembly) on the text of tokenizer_bench. Run by compare.py, which has the rest:
//
//   cd SCRATCH && node tiktoken_bench.mjs REPO/tests RANKS MIB
//
// The text is cut at 400,000 code points before the clock starts, at a multiple of whole characters; runs of 25,000 do not
// occur in it. Only the calls of the library are timed: the text comes as a string and the ids leave as an array.
import fs from 'fs';
import path from 'path';
import { createRequire } from 'module';

const [tests, dir, mib] = process.argv.slice(2);
const { Corpus, Digest, toText } = await import(path.resolve(tests, 'text/parity_corpus.mjs'));
const { Tiktoken } = createRequire(process.cwd() + '/')('tiktoken');
const pattern = JSON.parse(fs.readFileSync(path.resolve(tests, 'text/golden_tiktoken.json'), 'utf8')).pattern;

const encoder = new Tiktoken(fs.readFileSync(path.resolve(dir, 'tiktoken.model'), 'utf8'), {}, pattern);
const bytes = new Corpus(tests).mixture(Number(mib) * 2 ** 20, 1);
const segments = [];
let from = 0, points = 0;
const text = toText(bytes);
for (let at = 0; at < text.length; ++points) {
  if (points === 400000) {
    segments.push(text.slice(from, at));
    from = at;
    points = 0;
  }
  at += text.codePointAt(at) > 0xffff ? 2 : 1;
}
segments.push(text.slice(from));
encoder.encode_ordinary(segments[0].slice(0, 100000));  // the WebAssembly is compiled by now

const started = performance.now(), before = process.cpuUsage();
const parts = segments.map((segment) => encoder.encode_ordinary(segment));
const cpu = process.cpuUsage(before), seconds = (cpu.user + cpu.system) / 1e6, wall = (performance.now() - started) / 1000;
const digest = new Digest();
let ids = 0;
for (const part of parts) {
  ids += part.length;
  for (const id of part) digest.addId(id);
}
console.log(`${bytes.length} bytes  ${ids} ids  digest ${digest.hex()}  ${seconds.toFixed(4)} s (${seconds.toFixed(4)}, ${seconds.toFixed(4)})  ${(bytes.length / 1e6 / seconds).toFixed(2)} MB/s  wall ${wall.toFixed(4)} s`);
