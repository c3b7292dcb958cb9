// Writes golden_tiktoken.json: what the published tiktoken (npm `tiktoken`, WebAssembly build of the Rust library that the
// released tokenizer calls) does with the released pattern. An oracle that shares no code and no tables with k3/text.
//
//   mkdir /tmp/t && cd /tmp/t && npm install tiktoken@1.0.22
//   cp REPO/tests/text/make_golden.mjs . && node make_golden.mjs REPO/tests/demo/model REPO/tests/text/golden_tiktoken.json
//
// Sections of the output
//   strings  [text, ids under the demo ranks with specials as text, piece lengths in bytes, ids with specials as ids or 0]
//   scalars  for every scalar value (planes 4 to 13, 15 and 16: every 257th) the pieces of each template, run-length coded
//   decode   [bytes in hex, text as a WHATWG decoder replaces them: U+FFFD per maximal subpart, as Python's errors='replace']
//
// Piece lengths are exact, not inferred: each batch gets a rank file that holds every substring as a token, so that a whole
// piece is always one token.
import fs from 'fs';
import { createRequire } from 'module';
const require = createRequire(import.meta.url);
const { Tiktoken } = require('tiktoken');
const version = JSON.parse(fs.readFileSync(require.resolve('tiktoken').replace(/[^/]*$/, 'package.json'))).version;
const [model, output] = process.argv.slice(2);

const contraction = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`;
const up = `[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]`;
const lo = `[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]`;
const pattern = [
  `[\\p{Han}]+`,
  `[^\\r\\n\\p{L}\\p{N}]?${up}*${lo}+${contraction}`,
  `[^\\r\\n\\p{L}\\p{N}]?${up}+${lo}*${contraction}`,
  `\\p{N}{1,3}`,
  ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*`,
  `\\s*[\\r\\n]+`,
  `\\s+(?!\\S)`,
  `\\s+`,
].join('|');

// ---- seeded generator: 32-bit xorshift, the same on every machine
let state = 0x9e3779b9;
const below = (n) => {
  state ^= state << 13; state ^= state >>> 17; state ^= state << 5;
  return (state >>> 0) % n;
};
const pick = (list) => list[below(list.length)];

// ---- corpus
const listed = [
  'The capital of France is', 'The largest planet in our solar system is', 'Hello, world!', 'Hello world', 'Hello\n\nworld  ',
  "I'M we're they'LL 1234567", '你好世界', '你好，世界！漢字', 'Привет — café naïve', '🙂🚀👩\u200d💻', 'Tabs\tand\r\nlines\u00a0end',
  'a\u001cb', ' \u001c a', 'a\u2028b', 'ＡＢＣ 한국어 हिन्दी العربية', 'a <|open|> b [BOS] c', 'a \ufeffb', '\ufeffBOM first',
  '', ' ', '  ', '\n', '\r', '\r\n', '\r\n\r\n', '\n\n  \n', '  \n  x', '   x', 'x   ', '\t\t x', ' \u3000 x', '\u3000\u3000',
  'a\u0085b', 'a\u0085\u0085b', ' \u0085 ', 'a\u180eb', ' \u180e ', '\u180e\u180e', 'a\u001d\u001e\u001fb', '\u001c\u001c \u001f', '\u000b\u000c x',
  'a\0b', '\0', '\0\0\0', ' \0 ', 'A\0B\nC\0', "don\u2019t don't DON'T don'\u017f it'\u017f IT'S x'D'll", "'s 't 're", "''s", "a'sb a'SB", "'ll'll",
  "世's 世'll", "abc's123", "ABC's", "a're a'r a've a'v a'l a'll", "e\u0301'S", '漢abc字', 'abc漢字def', '漢123字', '123漢456', '漢 字', '漢\n字', '漢、字',
  '漢字ひらがなカタカナ', 'カタカナ漢字', '々〆〇', '〇〇七', '⺀⺁⻳', 'a⺀b', '!⺀!', '⼀⼁', '〡〢〣', '㐀䶿', '𠀀𠀁a', 'a𠀀', '𰀀𰀁', '\u{31350}x', '\u{2ebf0}x',
  'が\u3099', 'カー', '한글漢字', 'ééé', 'e\u0301e\u0301', '\u0301', '\u0301a', ' \u0301a', '!\u0301a', '1\u0301', 'A\u0301B', 'न\u093fन', 'ᾳ ᾼ ǅ ǆ Ǆ',
  'ǅungla', 'CamelCaseString', 'XMLHttpRequest', 'HTTPServer2x', 'snake_case_name', 'aB', 'Ab', 'ABc', 'abC', 'ʰa aʰ Aʰb', 'ªº', 'ßẞ', 'İıſ', 'K\u212a',
  '1', '12', '123', '1234', '12345', '1,234,567.89', '١٢٣٤', '½¾', '²³', 'Ⅷ', '𝟘𝟙𝟚𝟛', '1a2b', '0x1F', '3.14e-10',
  '!!!', ' !!!', '  !!!', '!!!\n\n', '!!!\r\n\r\nx', '(a)', '"quoted"', ' "q', '-- a', '=>', '\n\t\tif (x) {\n\t\t}\n', '#include <x>\r\n', '/* c */',
  'https://example.com/a?b=c&d=%20#f', 'a@b.c', '$1.00', '€5', '🙂', '🙂🙂', ' 🙂', 'a🙂b', '👩‍👩‍👧‍👦', '🇫🇷', '❤️', '1️⃣', '\u200b', 'a\u200bb', '\u200e\u200f',
  '\u{10ffff}', '\uffff', '\ue000', '\u{f0000}x', 'ก็', 'ภาษาไทย', 'שלום', 'עִבְרִית', 'العَرَبِيَّة', 'ქართული', 'Ὀδυσσεύς', 'Ελλάδα', 'ՀԱՅ հայ', 'ᏣᎳᎩ ꭰ',
  '\u{10400}\u{10428}', '\u{10428}\u{10400}', '\u{1e900}\u{1e922}', 'ⅰⅠ', 'ⓐⒶ', 'ﬁﬀ', '\u{1d400}\u{1d41a}', '\u1c89\u1c8a', '\ua7cb\u0264', '\u{10d50}\u{10d70}', '\u0897a',
  '<|open|>message role="user"<|sep|>hi<|close|>message<|sep|><|end_of_msg|>', '[BOS][EOS]', '[BOS]a[EOS]', '<|open|', '<|open|>>', '<<|open|>', '[[BOS]]', ' [PAD]',
  '<|reserved_token_2056|>', '<|reserved_token_2060|> x', '<|reserved_token_99999|>', '<|reserved_token_2303|>', '<|im_user|>', '<|im_end|>', '<osagent_mode>', '[UNK]',
  'a<|media_begin|>image 640x480<|media_content|><|media_pad|><|media_end|>b', '<|kimi_image_placeholder|>', '<|open|>\u4e16<|close|>', '\n<|sep|>\n',
  'a'.repeat(300), 'ab'.repeat(150), ' '.repeat(300), '^'.repeat(200), '\n'.repeat(200), '世'.repeat(100), '🙂'.repeat(50), 'a '.repeat(100) + 'b', 'Aa'.repeat(90), 'AAAA'.repeat(40) + '1',
];
const words = fs.readFileSync(model + '/../expected.json', 'utf8');
const sentences = JSON.parse(words).prompts.flatMap((p) => [p.prompt_text, p.generated_text]);

const atoms = ['a', 'b', 'z', 'A', 'Z', 'é', 'É', 'ß', 'ſ', 'ǅ', 'ʰ', 'ª', 's', 'S', 't', 're', 'LL', 'd', "'", "'", '’', ' ', ' ', ' ', '\t', '\n', '\r', '\r\n', '\u0085', '\u00a0', '\u3000',
  '\u2028', '\u180e', '\u001c', '\u001f', '\0', '1', '12', '٣', '²', 'Ⅷ', '世', '界', '漢字', '々', '〇', '⺀', '\u{20000}', 'あ', 'カ', 'ー', '한', 'न', '\u093f', '\u0301', '\u{1d165}', '!', '.', ',', '-', '_',
  '"', '(', '<', '|', '>', '[', '$', '+', '🙂', '\u200d', '\ufe0f', '\u200b', '\ufeff', '\u{10400}', '\u{10428}', '\u{10ffff}', 'Ж', 'ж', 'ع', 'ا', 'ก', '็', ' the', ' of', 'ing', 'The'];
const special_atoms = ['<|open|>', '<|close|>', '<|sep|>', '[BOS]', '[EOS]', '<|end_of_msg|>', '<|reserved_token_2056|>', '<|', '|>', '[', ']'];
const scalar = () => {
  for (;;) {
    const c = pick([() => below(0x80), () => below(0x800), () => below(0x10000), () => below(0x30000), () => 0x4e00 + below(0x5200)])();
    if (c < 0xd800 || c > 0xdfff) return String.fromCodePoint(c);
  }
};
const mixtures = [];
for (let i = 0; i < 2600; ++i) {
  let s = '';
  for (let n = 1 + below(12); n > 0; --n) s += pick(atoms);
  mixtures.push(s);
}
for (let i = 0; i < 500; ++i) {
  let s = '';
  for (let n = 1 + below(10); n > 0; --n) s += below(3) ? scalar() : pick(atoms);
  mixtures.push(s);
}
for (let i = 0; i < 300; ++i) {
  let s = '';
  for (let n = 2 + below(8); n > 0; --n) s += below(2) ? pick(special_atoms) : pick(atoms);
  mixtures.push(s);
}
const texts = [...new Set([...listed, ...sentences, ...mixtures])];

// ---- ids under the demo ranks
const ranks = fs.readFileSync(model + '/tiktoken.model', 'utf8');
const first = ranks.trim().split('\n').length;
const named = JSON.parse(fs.readFileSync(model + '/tokenizer_config.json', 'utf8')).added_tokens_decoder;
const specials = {};
for (let id = first; id < first + 256; ++id) specials[named[id]?.content ?? `<|reserved_token_${id}|>`] = id;
const demo = new Tiktoken(ranks, specials, pattern);

// ---- exact pieces
const bytes_of = (s) => Buffer.from(s, 'utf8');
function split_all(batch) {
  const tokens = new Set();
  for (let b = 0; b < 256; ++b) tokens.add(Buffer.from([b]).toString('base64'));
  for (const s of batch) {
    const chars = [...s].map(bytes_of);
    for (let i = 0; i < chars.length; ++i) {
      for (let j = i + 1; j <= Math.min(chars.length, i + 310); ++j) tokens.add(Buffer.concat(chars.slice(i, j)).toString('base64'));
    }
  }
  let lines = '', rank = 0;
  for (const t of tokens) lines += `${t} ${rank++}\n`;
  const table = [...tokens];
  const encoding = new Tiktoken(lines, {}, pattern);
  const result = batch.map((s) => [...encoding.encode_ordinary(s)].map((id) => Buffer.from(table[id], 'base64').length));
  encoding.free();
  return result;
}

const strings = [];
for (let i = 0; i < texts.length; i += 100) {
  const batch = texts.slice(i, i + 100);
  const pieces = split_all(batch);
  batch.forEach((text, k) => {
    const plain = [...demo.encode_ordinary(text)];
    const marked = [...demo.encode(text, 'all', [])];
    strings.push([text, plain, pieces[k], marked.join() === plain.join() ? 0 : marked]);
  });
}

// ---- every scalar in templates; "\u0001" stands for the scalar
const templates = ['a\u0001b', ' \u0001', '\u0001\u0001', '1\u00011', 'A\u0001B', '世\u0001a', '\u0001\n', '  \u0001', "a'\u0001", '!\u0001\n'];
const signatures = [], known = new Map(), runs = [];
const list = [];
for (let c = 0; c < 0x110000; ++c) {
  if (c >= 0xd800 && c <= 0xdfff) continue;
  const plane = c >> 16;
  if (((plane >= 4 && plane <= 13) || plane >= 15) && c % 257) continue;
  list.push(c);
}
for (let i = 0; i < list.length; i += 2048) {
  const part = list.slice(i, i + 2048);
  const batch = part.flatMap((c) => templates.map((t) => t.replaceAll('\u0001', () => String.fromCodePoint(c))));
  const pieces = split_all(batch);
  part.forEach((c, k) => {
    // Lengths in scalars, so that 1- to 4-byte scalars of one class share a signature.
    const signature = templates.map((t, j) => {
      const chars = [...batch[k * templates.length + j]].map((x) => bytes_of(x).length);
      let at = 0;
      return pieces[k * templates.length + j].map((n) => {
        let count = 0;
        for (let left = n; left > 0; left -= chars[at++]) ++count;
        return count;
      }).join('');
    }).join(' ');
    if (!known.has(signature)) { known.set(signature, signatures.length); signatures.push(signature); }
    const id = known.get(signature);
    if (!runs.length || runs[runs.length - 1][1] !== id) runs.push([c, id]);
  });
  if (i % (2048 * 16) === 0) process.stderr.write(`${i} of ${list.length}\r`);
}

// ---- invalid UTF-8
const parts = [[0x41], [0x80], [0xbf], [0xc0], [0xc2], [0xc2, 0xa2], [0xe0], [0xe0, 0x80], [0xe0, 0xa0], [0xe4, 0xb8], [0xe4, 0xb8, 0x96], [0xed, 0xa0], [0xed, 0xa0, 0x80], [0xed, 0x9f, 0xbf], [0xef, 0xbb, 0xbf],
  [0xf0], [0xf0, 0x80], [0xf0, 0x9f], [0xf0, 0x9f, 0x99], [0xf0, 0x9f, 0x99, 0x82], [0xf4, 0x8f], [0xf4, 0x90], [0xf4, 0x8f, 0xbf, 0xbf], [0xf5], [0xff], [0xfe], [0x00], [0xc1, 0x81]];
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const decode = [];
for (const a of parts) for (const b of parts) decode.push(Buffer.from([...a, ...b]));
for (let i = 0; i < 300; ++i) {
  const b = [];
  for (let n = below(9); n >= 0; --n) b.push(...pick(parts));
  decode.push(Buffer.from(b));
}

const rows = (list) => '[\n' + list.map((x) => JSON.stringify(x)).join(',\n') + '\n]';
fs.writeFileSync(output, `{"generator":"make_golden.mjs","tiktoken":"${version}","node":"${process.version}","seed":"9e3779b9",\n"pattern":${JSON.stringify(pattern)},\n` +
  `"templates":${JSON.stringify(templates)},\n"signatures":${JSON.stringify(signatures)},\n"runs":${JSON.stringify(runs)},\n` +
  `"strings":${rows(strings)},\n"decode":${rows(decode.map((b) => [b.toString('hex'), decoder.decode(b)]))}}\n`);
