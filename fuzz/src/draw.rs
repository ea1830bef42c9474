//! Choices and texts made from the fuzzer's bytes. When the bytes run out, every choice is the first one.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use bpe::pattern::Pattern;

/// GPT-2's pattern, spelled out.
pub const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// GPT-4's pattern as a regular expression.
pub const GPT4: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
);

/// Patterns: the two with their own scanners, an ordinary user-defined one, one that leaves gaps, one with empty
/// matches, and one that matches everything as one word. The first two are listed twice, because they are used most.
static PATTERNS: LazyLock<[Pattern; 8]> = LazyLock::new(|| {
    ["gpt2", "gpt4", "gpt2", "gpt4", r"\s*\S+", "[a-z]+", r"\d*", "(?s:.+)"]
        .map(|name| Pattern::parse(name).expect("a named pattern or a valid expression"))
});

/// Special tokens that overlap with each other and with critical text of the patterns.
const SPECIALS: [&str; 20] = [
    "<|e|>",
    "<|e|><|e|>",
    "<|",
    "|>",
    "e|><",
    "a",
    "ab",
    "aba",
    "ba",
    " ",
    "  ",
    " a",
    "a b",
    "'s",
    "'",
    "\n",
    "é",
    "中",
    "!!",
    "<|e|> ",
];

/// What texts are made of: every class in one to four bytes, what contractions are made of, every way in which
/// UTF-8 can be broken, and the halves of special tokens.
#[rustfmt::skip]
const FRAGMENTS: [&[u8]; 64] = [
    b"a", b"b", b"s", b"t", b"d", b"m", b"l", b"v", b"r", b"e", b"S", b"L", "\u{17f}".as_bytes(),
    "é".as_bytes(), "ß".as_bytes(), "中".as_bytes(), "𝒳".as_bytes(),
    b"0", b"7", "²".as_bytes(), "٣".as_bytes(), "Ⅷ".as_bytes(), "𝟘".as_bytes(),
    b" ", b"  ", b"\n", b"\r", b"\t", b"\x0b", "\u{85}".as_bytes(), "\u{a0}".as_bytes(),
    "\u{2003}".as_bytes(), "\u{2028}".as_bytes(), "\u{3000}".as_bytes(),
    b"'", b"''", b"!", b".", b"<", b">", b"_", b"\0", b"\x1c", "\u{301}".as_bytes(), "’".as_bytes(),
    "—".as_bytes(), "😀".as_bytes(), "\u{d0080}".as_bytes(),
    b"\x80", b"\xbf", b"\xc3", b"\xc0\x80", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80",
    b"\xff", b"<|e|>", b"<|", b"|>", b" the", b"'ll", b"aba", b"ab",
];

/// Bytes of texts in another encoding: lead bytes, continuation bytes and some ASCII in any order.
const BROKEN: &[u8; 16] = b"\xc3\xa9\xe6\x97\xa5\xf0\xa0\x80\x80\xbf\x82\xaca1 '";

/// The window size in bytes of the scanner of the GPT-2 pattern.
pub const WINDOW: usize = 4096;

/// The repetitions of a fragment: 15 and 64 are sizes in the crate's tables and vector code.
const REPEATS: [usize; 4] = [1, 2, 15, 64];

/// The fuzzer's bytes, used up from the front.
pub struct Draw<'d> {
    all: &'d [u8],
    rest: &'d [u8],
    hash: u64,
}

impl<'d> Draw<'d> {
    pub fn new(data: &'d [u8]) -> Draw<'d> {
        let mut hasher = DefaultHasher::new(); // the same in every process
        hasher.write(data);
        Draw { all: data, rest: data, hash: hasher.finish() }
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        first
    }

    pub fn bytes(&mut self, len: usize) -> &'d [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % limit
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// True for one input in `n`, independent of the remaining bytes: for slow cases, which the fuzzer must not favour.
    pub fn rarely(&self, n: u64) -> bool {
        self.hash.is_multiple_of(n)
    }

    /// Often a small number, and sometimes one of any size.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=191 => small.into(),
            power @ 192..=253 => (1 << (power - 190)) - u64::from(self.byte() & 1),
            254 => u64::MAX >> (self.byte() & 1),
            255 => u64::from_le_bytes([(); 8].map(|()| self.byte())),
        }
    }

    pub fn pattern(&mut self) -> Pattern {
        PATTERNS[self.below(PATTERNS.len())].clone()
    }

    /// Up to `limit` special tokens: some from the list, some of any characters. None is empty; some may be equal.
    pub fn specials(&mut self, limit: usize) -> Vec<String> {
        let num_specials = usize::from(self.byte()) % (limit + 1);
        let mut special = || match self.byte() {
            listed @ 0..=199 => SPECIALS[usize::from(listed) % SPECIALS.len()].to_owned(),
            len => format!("{}>", String::from_utf8_lossy(self.bytes(usize::from(len) % 8))),
        };
        (0..num_specials).map(|_| special()).collect()
    }

    /// A text from up to `len` of the remaining bytes, which are used unchanged, as invalid UTF-8 or as names of
    /// fragments. Special tokens replace the last fragments.
    pub fn text(&mut self, len: usize, specials: &[String]) -> Vec<u8> {
        match self.byte() % 4 {
            0 => return self.bytes(len).to_vec(),
            1 => {
                return self
                    .bytes(len)
                    .iter()
                    .map(|&byte| BROKEN[usize::from(byte) % BROKEN.len()])
                    .collect();
            }
            _ => {}
        }
        let mut text = Vec::new();
        for &byte in self.bytes(len) {
            let number = usize::from(byte & 63);
            let special = specials.get(63 - number).map(String::as_bytes);
            let fragment = special.unwrap_or(FRAGMENTS[number]);
            (0..REPEATS[usize::from(byte >> 6)]).for_each(|_| text.extend_from_slice(fragment));
        }
        text
    }

    /// A text made of all remaining bytes.
    pub fn rest(&mut self, specials: &[String]) -> Vec<u8> {
        self.text(usize::MAX, specials)
    }

    /// For one input in four, broken UTF-8 made of its last bytes: behind a filler of two bytes, and behind fillers that
    /// move it across the edge of a window byte by byte.
    pub fn at_edges(&self) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
        if !self.rarely(4) {
            return None;
        }
        let broken = broken(&self.all[self.all.len().saturating_sub(16)..]);
        let after = |len: usize| [filler(len), broken.clone()].concat();
        Some((after(2), (0..=broken.len()).map(|shift| after(WINDOW - shift)).collect()))
    }
}

/// Lead bytes, continuation bytes and a little ASCII in any order.
fn broken(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|&byte| BROKEN[usize::from(byte) % BROKEN.len()]).collect()
}

/// `len` words of one byte, of which the last is always the same.
pub fn filler(len: usize) -> Vec<u8> {
    b"a1".iter().copied().cycle().skip(len % 2).take(len).collect()
}

/// Repeat a text until it has `len` bytes: unchanged, or with numbers in between, so that words differ.
pub fn repeat(text: &[u8], len: usize, numbered: bool) -> Vec<u8> {
    let mut long = Vec::with_capacity(len + text.len() + 8);
    let mut number = 0u32;
    while !text.is_empty() && long.len() < len {
        long.extend_from_slice(text);
        if numbered {
            long.extend_from_slice(number.to_string().as_bytes());
            number += 1;
        }
    }
    long
}
