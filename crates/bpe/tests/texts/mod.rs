//! Random texts, determined by a seed, and composed of pieces that are likely to cause errors.

/// Pieces of every class that a pattern distinguishes, contractions, white space of all kinds, and bytes that are not UTF-8.
const PIECES: &[&[u8]] = &[
    b"a",
    b"ab",
    b"aaaa",
    b"the",
    b" the",
    b"x",
    b"Z",
    b"1",
    b"12",
    b"1234",
    b" ",
    b"  ",
    b"\n",
    b"\r\n",
    b" \n",
    b"\t",
    b"!",
    b" !",
    b"...",
    b"'",
    b"'s",
    b"'ll",
    b"'re",
    b"'LL",
    b"'l",
    b"''",
    b" '",
    b"<",
    b"<e>",
    b"<e><e>",
    b"e>",
    b"<| a b |>",
    b"| a",
    "é".as_bytes(),
    "'\u{17f}".as_bytes(),
    "日本".as_bytes(),
    "\u{a0}".as_bytes(),
    "\u{3000}".as_bytes(),
    "½".as_bytes(),
    "٣".as_bytes(),
    "🙂".as_bytes(),
    "𠀀".as_bytes(),
    b"\x80",
    b"\xff",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xed\xa0\x80",
    b"\x00",
];

/// Special tokens that overlap, hold spaces, and lie inside each other.
#[allow(dead_code)] // not every test needs them
pub const SPECIALS: &[&str] = &["<e>", "<e><e>", "<| a b |>", "e><"];

/// A small generator of random numbers (xorshift), so that tests need no dependency and can be repeated.
pub struct Random(u64);

impl Random {
    /// Begin at a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    /// Up to `max_len` bytes of text that is hardly ever valid UTF-8: lead bytes, continuation bytes and ASCII of
    /// every class in any order, as in text of another encoding. On the characters among them all versions of
    /// Unicode agree.
    #[allow(dead_code)] // not every test needs it
    pub fn broken(&mut self, max_len: usize) -> Vec<u8> {
        const BYTES: &[u8] =
            b"\xc2\xc3\xc5\xce\xe2\xe3\xe6\xed\xf4\xff\x80\x82\x85\x97\xa0\xa5\xa9\xac\xbf\xbf";
        const ASCII: &[u8] = b"as1 '\n!";
        let share = 1 + self.below(8);
        let byte = |random: &mut Random| {
            let bytes = if random.below(share) == 0 { ASCII } else { BYTES };
            bytes[random.below(bytes.len())]
        };
        (0..self.below(max_len + 1)).map(|_| byte(self)).collect()
    }

    /// A text of up to `max_pieces` pieces. Most texts use only a few different ones, so that things repeat.
    pub fn text(&mut self, max_pieces: usize) -> Vec<u8> {
        let variety = 1 + self.below(PIECES.len());
        let first = self.below(PIECES.len());
        let num_pieces = self.below(max_pieces + 1);
        (0..num_pieces).flat_map(|_| PIECES[(first + self.below(variety)) % PIECES.len()].to_vec()).collect()
    }
}
