//! Encoding: on one thread, on several, in a batch or as a stream in any pieces, with some special tokens or all, the
//! ids are those of merging word by word, one merge after the other; and decoding yields the text.
#![no_main]

use std::collections::{HashMap, HashSet};

use bpe::count::Counter;
use bpe::encode::{Batch, Encoder, Stream};
use bpe::error::Error;
use bpe::merge::{MergeOptions, Symbol, learn_merges};
use bpe::pattern::Pattern;
use bpe::special::Specials;
use bpe_fuzz::draw::{Draw, repeat};
use bpe_fuzz::naive::{self, Part};
use libfuzzer_sys::fuzz_target;

/// Enough for two or for several of the chunks that threads share.
const LONG: [usize; 2] = [300 << 10, 900 << 10];
/// Merges derived from the fuzzer's bytes make no longer tokens than this.
const LONGEST_TOKEN: usize = 100;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let pattern = draw.pattern();
    let mut specials = draw.specials(5);
    let mut seen = HashSet::new();
    specials.retain(|special| seen.insert(special.clone()));
    let (allowed, disallowed) = (draw.byte(), draw.byte() & draw.byte() & draw.byte());
    let is_long = draw.rarely(256);
    let numbered = draw.once_in(2);
    let num_threads = 2 + draw.below(7);
    let piece_lens: Vec<usize> = (0..8).map(|_| draw.byte().into()).collect();
    let stride = [1, 1, 3, 70_000][draw.below(4)];
    let is_trained = draw.once_in(2);
    let num_merges = draw.byte();
    let derived = if is_trained { Vec::new() } else { derive_merges(&mut draw, num_merges) };
    let text = draw.rest(&specials);
    let merges = if is_trained { train(&pattern, &specials, &text, num_merges) } else { derived };

    let vocabulary = Vocabulary { pattern, merges, specials, stride };
    let encoder = vocabulary.encoder();
    let expected = vocabulary.encode(&text, &vocabulary.specials);
    let encode = |text: &[u8]| {
        let mut ids: Vec<u32> = Vec::new();
        encoder.encode(text, &mut ids).map(|()| ids)
    };
    let given = |outcome: bpe::error::Result<Vec<u32>>| outcome.expect("these expressions do not give up");
    for _ in 0..2 {
        assert_eq!(given(encode(&text)), expected); // first without, then with the words in the cache
    }
    let mut decoded = Vec::new();
    encoder.tokens().decode(expected.iter().copied(), &mut decoded).expect("the ids are the vocabulary's");
    assert_eq!(decoded, text);
    assert_eq!(stream(&encoder, &text, &piece_lens), expected);

    let half = text.len() / 2;
    let batch: [&[u8]; 4] = [&text, &text[..half], b"", &text[half..]];
    let together: Batch<u32> = encoder.encode_batch(&batch, num_threads).expect("as before");
    let one_by_one = batch.map(|text| given(encode(text)));
    assert!(together.iter().eq(one_by_one.iter()), "a batch differs from its texts");
    if stride <= 3 {
        let mut narrow: Vec<u16> = Vec::new();
        encoder.encode(&text, &mut narrow).expect("as before");
        assert!(narrow.iter().map(|&id| u32::from(id)).eq(expected), "ids of 16 bits differ");
    }

    let select = |mask: u8| -> Vec<String> {
        let chosen = vocabulary.specials.iter().enumerate().filter(|(index, _)| mask >> index & 1 == 1);
        chosen.map(|(_, special)| special.clone()).collect()
    };
    check_selected(&vocabulary, &encoder, &text, &select(allowed), &select(disallowed));

    if let (Pattern::Gpt2 | Pattern::Gpt4, Some((near, texts))) = (&vocabulary.pattern, draw.at_edges()) {
        let merges = train(&vocabulary.pattern, &[], &near, 64);
        let vocabulary = Vocabulary { merges, specials: Vec::new(), ..vocabulary.clone() };
        let (encoder, expected) = (vocabulary.encoder(), vocabulary.encode(&near, &[]));
        for text in texts {
            let ids: Vec<u32> = encoder.encode_whole(&text).expect("our scanners cannot fail");
            let (filler, rest) = ids.split_at(text.len() - near.len());
            assert!(filler.iter().zip(&text).all(|(&id, &byte)| id == u32::from(byte) * vocabulary.stride));
            assert_eq!(rest, expected);
        }
    }

    if is_long {
        let text = repeat(&text, LONG[usize::from(num_threads > 6)], numbered);
        let expected = vocabulary.encode(&text, &vocabulary.specials);
        let parallel: Vec<u32> = encoder.encode_parallel(&text, num_threads).expect("as before");
        assert!(parallel == expected, "threads change the ids");
        assert!(given(encode(&text)) == expected, "a longer text changes the ids");
        let piece_lens: Vec<usize> = piece_lens.iter().map(|len| 256 * len + 1).collect();
        assert!(stream(&encoder, &text, &piece_lens) == expected, "a stream changes the ids");
    }
});

/// Everything an encoder is made of. Symbol `s` has the id `s * stride`, and the special tokens have the next.
#[derive(Clone)]
struct Vocabulary {
    pattern: Pattern,
    merges: Vec<(Symbol, Symbol)>,
    specials: Vec<String>,
    stride: u32,
}

impl Vocabulary {
    fn special_id(&self, special: &str) -> u32 {
        let index = self.specials.iter().position(|known| known == special).expect("one of ours");
        (256 + self.merges.len() + index) as u32 * self.stride
    }

    fn encoder(&self) -> Encoder {
        let bytes = |symbol| naive::bytes(&self.merges, symbol);
        let symbols = 0..256 + self.merges.len() as Symbol;
        let ordinary = symbols.map(|symbol| (symbol * self.stride, bytes(symbol)));
        let special = self.specials.iter().map(|token| (self.special_id(token), token.clone().into_bytes()));
        let tokens: Vec<(u32, Vec<u8>)> = ordinary.chain(special).collect();
        let merges: Vec<_> = self.merges.iter().map(|&(left, right)| (bytes(left), bytes(right))).collect();
        let specials = self.specials.iter().map(|token| (token.clone(), self.special_id(token))).collect();
        Encoder::new(&tokens, &merges, specials, self.pattern.clone()).expect("the vocabulary is sound")
    }

    /// The right ids.
    fn encode(&self, text: &[u8], specials: &[String]) -> Vec<u32> {
        let mut known: HashMap<Vec<u8>, Vec<Symbol>> = HashMap::new();
        let definition = naive::definition(&self.pattern, text);
        let parts = naive::pre_tokens(definition, specials, text).expect("these expressions do not give up");
        let mut ids = Vec::new();
        for part in parts {
            match part {
                Part::Special(index, _) => ids.push(self.special_id(&specials[index])),
                Part::Text(word) => {
                    let symbols =
                        known.entry(word).or_insert_with_key(|word| naive::merge_word(&self.merges, word));
                    ids.extend(symbols.iter().map(|symbol| symbol * self.stride));
                }
            }
        }
        ids
    }
}

/// Merges of any earlier tokens, whether or not a trainer would learn them; no token is made twice.
fn derive_merges(draw: &mut Draw, num_merges: u8) -> Vec<(Symbol, Symbol)> {
    let mut merges = Vec::new();
    let mut known: HashSet<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    for _ in 0..num_merges {
        let mut symbol = || match draw.byte() {
            earlier @ 128..=255 if !merges.is_empty() => {
                256 + (usize::from(earlier) % merges.len()) as Symbol
            }
            byte => b"abestdlvr '<|>!0\n\xc3\xa9\x80"[usize::from(byte) % 20].into(),
        };
        let pair = (symbol(), symbol());
        let token = [naive::bytes(&merges, pair.0), naive::bytes(&merges, pair.1)].concat();
        if token.len() <= LONGEST_TOKEN && known.insert(token) {
            merges.push(pair);
        }
    }
    merges
}

/// The merges that the text itself teaches.
fn train(pattern: &Pattern, specials: &[String], text: &[u8], num_merges: u8) -> Vec<(Symbol, Symbol)> {
    let specials = Specials::new(specials.to_vec()).expect("no special token is empty");
    let mut counter = Counter::new(pattern.clone(), specials);
    counter.add_text(text).expect("these expressions do not give up");
    let options = MergeOptions { num_merges: num_merges.into(), ..MergeOptions::default() };
    let merges = learn_merges(counter.into_counts(), &options, &mut |_| true).expect("the counts are small");
    merges.iter().map(|merge| (merge.left, merge.right)).collect()
}

/// Encode a text that arrives in pieces of these lengths, over and over; pieces may be empty, but not all.
fn stream(encoder: &Encoder, text: &[u8], piece_lens: &[usize]) -> Vec<u32> {
    let mut stream = Stream::new();
    let mut ids = Vec::new();
    let mut rest = text;
    for &len in piece_lens.iter().chain([&1]).cycle() {
        let (piece, later) = rest.split_at(len.min(rest.len()));
        stream.feed(encoder, piece, &mut ids).expect("these expressions do not give up");
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    stream.finish(encoder, &mut ids).expect("these expressions do not give up");
    ids
}

/// Where only some special tokens count and others are forbidden, the first forbidden one is named.
fn check_selected(
    vocabulary: &Vocabulary,
    encoder: &Encoder,
    text: &[u8],
    allowed: &[String],
    disallowed: &[String],
) {
    let mut ids: Vec<u32> = Vec::new();
    let outcome = encoder.encode_selected(text, allowed, disallowed, &mut ids);
    let forbidden = naive::split(disallowed, text).into_iter().find_map(|part| match part {
        Part::Special(index, position) => Some((&disallowed[index], position)),
        Part::Text(_) => None,
    });
    match (outcome, forbidden) {
        (Ok(()), None) => assert_eq!(ids, vocabulary.encode(text, allowed)),
        (Err(Error::DisallowedSpecial { token, position }), Some(expected)) => {
            assert_eq!((&token, position), expected);
        }
        (outcome, forbidden) => panic!("{outcome:?}, though the forbidden token is {forbidden:?}"),
    }
}
