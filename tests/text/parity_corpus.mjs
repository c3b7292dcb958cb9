// The texts of the parity test, for the oracle: the same as parity_corpus.hpp makes, which says what they are. Two
// programs, one corpus: parity_ids.json holds a digest of every text, so a difference between them is seen as such.
//
// A text is a string of bytes (one character, 0 to 255, for each), as is everything that is digested.
import fs from 'fs';

const toBytes = (text) => Buffer.from(text, 'utf8').toString('latin1');
export const toText = (bytes) => Buffer.from(bytes, 'latin1').toString('utf8');
const scalarBytes = (scalar) => toBytes(String.fromCodePoint(scalar));

/// 32-bit xorshift.
export class Random {
  constructor(seed) { this.state = seed; }
  below(n) {
    let s = this.state;
    s ^= s << 13;
    s ^= s >>> 17;
    s ^= s << 5;
    this.state = s;
    return (s >>> 0) % n;
  }
}

/// FNV-1a-64 in two halves of 32 bits.
export class Digest {
  constructor() { this.high = 0xcbf29ce4; this.low = 0x84222325; }
  addByte(byte) {
    const low = (this.low ^ byte) >>> 0;
    const product = low * 0x1b3;  // below 2^41: exact
    this.high = (Math.imul(this.high, 0x1b3) + Math.floor(product / 0x100000000) + (low << 8)) >>> 0;
    this.low = product >>> 0;
  }
  addBytes(bytes) { for (let i = 0; i < bytes.length; ++i) this.addByte(bytes.charCodeAt(i)); }
  addId(id) { for (let shift = 0; shift < 32; shift += 8) this.addByte((id >> shift) & 0xff); }
  hex() { return this.high.toString(16).padStart(8, '0') + this.low.toString(16).padStart(8, '0'); }
}

export class Corpus {
  constructor(tests) {
    this.cases = JSON.parse(fs.readFileSync(`${tests}/text/parity_cases.json`, 'utf8'));
    const folder = `${tests}/text/documents`;
    this.documents = fs.readdirSync(folder).sort().map((name) => [name, fs.readFileSync(`${folder}/${name}`, 'latin1')]);
  }

  /// [name, texts] of every group, in order.
  * groups() {
    yield ['listed', this.cases.listed.map(toBytes)];
    yield* this.sweep();
    const random = new Random(0x9e3779b9 | 0);
    for (let group = 0; group < 100; ++group) {
      yield [`random-${group}`, Array.from({ length: 100 }, () => this.randomText(random))];
    }
    for (const [name, text] of this.documents) yield [name, [text, text.replaceAll('\n', '\r\n')]];
    yield ['mixture', [this.mixture(1 << 18, 1)]];
    yield ['letters', [this.letters()]];
    for (const [name, ...parts] of this.cases.long) yield [name, [parts.map(([unit, times]) => toBytes(unit).repeat(times)).join('')]];
  }

  /// Every scalar value beside its neighbours, in each template; of the empty planes the ends and every 257th.
  * sweep() {
    for (let first = 0; first < 0x110000; first += 4096) {
      const scalars = [];
      for (let scalar = first; scalar < first + 4096; ++scalar) {
        const plane = scalar >> 16, inside = scalar & 0xffff;
        if (scalar >= 0xd800 && scalar < 0xe000) continue;
        if (((plane >= 4 && plane <= 13) || plane >= 15) && inside >= 256 && inside < 0xff00 && scalar % 257 !== 0) continue;
        scalars.push(scalarBytes(scalar));
      }
      const texts = this.cases.templates.map(toBytes).map((template) => scalars.map((bytes) => template.replaceAll('\u0001', () => bytes)).join(''));
      if (scalars.length > 0) yield [`scalars-${first.toString(16)}`, texts];
    }
  }

  randomScalar(random) {
    const limits = [0x80, 0x800, 0x3000, 0x10000, 0x110000];
    for (;;) {
      const scalar = random.below(limits[random.below(5)]);
      if (scalar < 0xd800 || scalar > 0xdfff) return scalarBytes(scalar);
    }
  }

  randomText(random) {
    let text = '', last = ' ';
    for (let n = 1 + random.below(24); n > 0; --n) {
      const kind = random.below(8);
      if (kind < 3) last = this.randomScalar(random);
      else if (kind === 3) last = last.repeat(1 + random.below(3));
      else if (kind === 4) last = scalarBytes(0x4e00 + random.below(0x5200));
      else last = toBytes(this.cases.atoms[random.below(this.cases.atoms.length)]);
      text += last;
      if (last.length > 64) last = ' ';
    }
    return text;
  }

  /// Runs of lines of all documents, with numbers, names and signs between them, until there are `size` bytes.
  mixture(size, seed) {
    const random = new Random(seed), parts = [];
    const lines = this.documents.map(([, text]) => text.split(/(?<=\n)/));
    for (let length = 0; length < size;) {
      const document = lines[random.below(lines.length)];
      const from = random.below(document.length), to = Math.min(from + 1 + random.below(6), document.length);
      let part = document.slice(from, to).join('');
      const kind = random.below(8);
      if (kind === 0) part += random.below(1000000000) + ' ';
      if (kind === 1) for (let n = 3 + random.below(10); n > 0; --n) part += String.fromCharCode((random.below(8) === 0 ? 65 : 97) + random.below(26));
      if (kind === 2) for (let n = 1 + random.below(6); n > 0; --n) part += scalarBytes(0x4e00 + random.below(0x5200));
      parts.push(part);
      length += part.length;
    }
    return parts.join('');
  }

  letters() {
    const random = new Random(7), codes = Buffer.alloc(1 << 18);
    for (let i = 0; i < codes.length; ++i) codes[i] = 97 + random.below(26);
    return codes.toString('latin1');
  }

  /// The text of a rank file of the released size: all bytes, all pairs of bytes in shuffled order, then strings that occur
  /// in the documents. With every pair a token, two bytes that are wrongly in one piece are soon one token.
  madeRanks() {
    const tokens = new Set();
    for (let byte = 0; byte < 256; ++byte) tokens.add(String.fromCharCode(byte));
    const pairs = Uint16Array.from({ length: 65536 }, (_, i) => i);
    const random = new Random(12345);
    for (let i = 65535; i > 0; --i) {
      const j = random.below(i + 1);
      [pairs[i], pairs[j]] = [pairs[j], pairs[i]];
    }
    for (const pair of pairs) tokens.add(String.fromCharCode(pair >> 8, pair & 255));
    const all = this.documents.map(([, text]) => text).join('');
    while (tokens.size < 163584) {
      const length = 3 + random.below(10);
      const from = random.below(all.length - length);
      tokens.add(all.slice(from, from + length));
    }
    return [...tokens];
  }
}
