// The oracle of the parity test: the published tiktoken (npm `tiktoken`, WebAssembly build of the Rust library that the
// released tokenizer calls), the released pattern, and the official cuts of long inputs, written from their description.
// tests/text/parity.sh installs it and runs all of this.
//
//   cd SCRATCH && node REPO/tests/text/parity.mjs REPO/tests --write    writes tests/text/parity_ids.json
//   cd SCRATCH && node REPO/tests/text/parity.mjs REPO/tests --check    compares instead; exit code 1 if they differ
//
// Both also write SCRATCH/o200k/: the ranks of o200k_base from the package, cut to the released count, as the two files
// of a checkpoint. They are not ours and stay out of the repository; only digests of what they give are in it.
//
// parity_ids.json: `listed` has the ids of each listed text under each set of ranks, specials as text, then as ids.
// `groups` has, for each group of texts, its name, number of texts, bytes, digest of the bytes, and for each set of ranks
// (0 where it is left out) the number of ids and their digest: of each text the ids, specials as text, then -1; and if
// the text has a '<' or a '[', its ids, specials as ids, then -1. All digests are FNV-1a-64 of little-endian values.
import fs from 'fs';
import { createRequire } from 'module';
import { Corpus, Digest, toText } from './parity_corpus.mjs';

const [tests, mode] = process.argv.slice(2);
const require = createRequire(process.cwd() + '/');
const { Tiktoken } = require('tiktoken');
const library = require.resolve('tiktoken').replace(/[^/]*$/, '');
const version = JSON.parse(fs.readFileSync(library + 'package.json', 'utf8')).version;

const contraction = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`;
const upper = `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]`, lower = `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]`;
const pattern = [`[\\p{Han}]+`, `[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${contraction}`, `[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${contraction}`,
  `\\p{N}{1,3}`, ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*`, `\\s*[\\r\\n]+`, `\\s+(?!\\S)`, `\\s+`].join('|');

const RANKS = 163584;
const corpus = new Corpus(tests);
const encode64 = (tokens) => tokens.map((token, rank) => Buffer.from(token, 'latin1').toString('base64') + ' ' + rank + '\n').join('');
const specialsFrom = (named, first) => {
  const specials = {};
  for (let id = first; id < first + 256; ++id) specials[named[id] ?? `<|reserved_token_${id}|>`] = id;
  return specials;
};

// ---- the three sets of ranks
const demo = fs.readFileSync(`${tests}/demo/model/tiktoken.model`, 'utf8');
const demoAdded = JSON.parse(fs.readFileSync(`${tests}/demo/model/tokenizer_config.json`, 'utf8')).added_tokens_decoder;
const demoNames = Object.fromEntries(Object.entries(demoAdded).map(([id, token]) => [id, token.content]));
const o200k = JSON.parse(fs.readFileSync(library + 'encoders/o200k_base.json', 'utf8')).bpe_ranks.split('\n').flatMap((line) => {
  const [, first, ...tokens] = line.split(' ');
  return tokens.map((token, i) => `${token} ${Number(first) + i}\n`);
});
o200k.slice(0, RANKS).forEach((line, rank) => { if (!line.endsWith(` ${rank}\n`)) throw new Error(`o200k rank ${rank}: ${line}`); });
const released = specialsFrom(corpus.cases.names, RANKS);
const sets = {
  demo: new Tiktoken(demo, specialsFrom(demoNames, 2048), pattern),
  made: new Tiktoken(encode64(corpus.madeRanks()), released, pattern),
  o200k: new Tiktoken(o200k.slice(0, RANKS).join(''), released, pattern),
};
fs.mkdirSync('o200k', { recursive: true });
fs.writeFileSync('o200k/tiktoken.model', o200k.slice(0, RANKS).join(''));
fs.writeFileSync('o200k/tokenizer_config.json', JSON.stringify({
  added_tokens_decoder: Object.fromEntries(Object.entries(corpus.cases.names).map(([id, content]) => [id, { content }])), eos_token: '[EOS]' }));

// ---- the official cuts: every 400,000 code points, then runs of at most 25,000 of one kind
const spaces = new Set('\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000');
if (spaces.size !== 29) throw new Error('Python has 29 spaces');
function* segments(text) {
  const points = [...text];
  for (let begin = 0; begin < points.length; begin += 400000) {
    const block = points.slice(begin, begin + 400000);
    let from = 0, run = 0, kind = spaces.has(block[0]);
    for (let i = 0; i < block.length; ++i) {
      const now = spaces.has(block[i]);
      run = now === kind ? run + 1 : 1;
      kind = now;
      if (run > 25000) {
        yield block.slice(from, i).join('');
        from = i;
        run = 1;
      }
    }
    yield block.slice(from).join('');
  }
}

const remembered = new Map();  // long segments repeat, and tiktoken takes seconds for one long piece
function encodeAll(set, text, allowed) {
  const ids = [];
  for (const segment of segments(text)) {
    const key = segment.length > 20000 ? set + allowed + segment : null;
    let part = key && remembered.get(key);
    if (!part) {
      part = allowed ? sets[set].encode(segment, 'all', []) : sets[set].encode_ordinary(segment);
      if (key) remembered.set(key, part);
    }
    for (const id of part) ids.push(id);
  }
  return ids;
}

const listed = corpus.cases.listed.map((text) => [text, ...Object.keys(sets).flatMap((set) => [encodeAll(set, text, false), encodeAll(set, text, true)])]);
const groups = [];
for (const [name, texts] of corpus.groups()) {
  const bytes = new Digest(), row = [name, texts.length, texts.reduce((sum, text) => sum + text.length, 0)];
  for (const text of texts) bytes.addBytes(text);
  row.push(bytes.hex());
  const started = Date.now();
  for (const set of Object.keys(sets)) {
    const digest = new Digest();
    let count = 0;
    // The ranks of the demo know few scripts: the sweep would be single bytes.
    if (set === 'demo' && name.startsWith('scalars-')) { row.push(0, 0); continue; }
    for (const text of texts) {
      const utf = toText(text);
      for (const allowed of /[<[]/.test(text) ? [false, true] : [false]) {
        const ids = encodeAll(set, utf, allowed);
        count += ids.length;
        for (const id of ids) digest.addId(id);
        digest.addId(-1);
      }
    }
    row.push(count, digest.hex());
  }
  remembered.clear();
  groups.push(row);
  process.stderr.write(`${name}: ${row[2]} bytes, ${Date.now() - started} ms\n`);
}

const rows = (list) => '[\n' + list.map((row) => JSON.stringify(row)).join(',\n') + '\n]';
const output = `{"generator":"parity.mjs","tiktoken":"${version}","sets":${JSON.stringify(Object.keys(sets))},\n"listed":${rows(listed)},\n"groups":${rows(groups)}}\n`;
const path = `${tests}/text/parity_ids.json`;
if (mode === '--write') {
  fs.writeFileSync(path, output);
} else {
  const same = fs.readFileSync(path, 'utf8') === output;
  console.log(same ? `parity_ids.json is what tiktoken ${version} gives` : 'parity_ids.json differs from what tiktoken gives');
  process.exit(same ? 0 : 1);
}
