//! All methods of encoding yield the ids of the definition, and decoding yields the text.

mod texts;

use bpe::encode::{Encoder, Stream};
use bpe::error::{Error, Result};
use bpe::merge::{MergeOptions, learn_merges};
use bpe::pattern::Pattern;
use bpe::special::{Piece, Specials};
use bpe::words::WordCounts;
use texts::{Random, SPECIALS};

/// A vocabulary trained on a random text, and its encoder.
struct Trained {
    pattern: Pattern,
    specials: Specials,
    merges: Vec<(Vec<u8>, Vec<u8>)>,
    tokens: Vec<Vec<u8>>,
    encoder: Encoder,
}

/// Ids are 3 * symbol + 1, so that ids and symbols differ; special tokens have the highest ids.
fn id_of(symbol: usize) -> u32 {
    3 * symbol as u32 + 1
}

fn train(random: &mut Random, expression: &str, num_merges: usize) -> Result<Trained> {
    let pattern = Pattern::parse(expression)?;
    let mut counts = WordCounts::new();
    for _ in 0..20 {
        let text = random.text(60);
        let mut start = 0;
        pattern.scan(&text, |base, ends| {
            for &end in ends {
                counts.add(&text[start..base + end as usize], 1)?;
                start = base + end as usize;
            }
            Ok(())
        })?;
    }
    let options = MergeOptions { num_merges, ..Default::default() };
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let mut merges = Vec::new();
    for merge in learn_merges(counts, &options, &mut |_| true)? {
        let (left, right) = (tokens[merge.left as usize].clone(), tokens[merge.right as usize].clone());
        tokens.push([left.clone(), right.clone()].concat());
        merges.push((left, right));
    }
    let special_tokens: Vec<String> = SPECIALS.iter().map(|&token| token.into()).collect();
    let with_ids: Vec<(String, u32)> =
        special_tokens.iter().cloned().zip((tokens.len()..).map(id_of)).collect();
    let mut all: Vec<(u32, Vec<u8>)> =
        tokens.iter().enumerate().map(|(symbol, token)| (id_of(symbol), token.clone())).collect();
    all.extend(with_ids.iter().map(|(token, id)| (*id, token.as_bytes().to_vec())));
    let encoder = Encoder::new(&all, &merges, with_ids, pattern.clone())?;
    Ok(Trained { pattern, specials: Specials::new(special_tokens)?, merges, tokens, encoder })
}

impl Trained {
    /// Cut out special tokens, cut the rest into words, apply one merge after the other.
    fn by_definition(&self, text: &[u8]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.specials.split(text, |piece| {
            let part = match piece {
                Piece::Special { index, .. } => {
                    ids.push(id_of(self.tokens.len() + index));
                    return Ok(());
                }
                Piece::Text(part) => part,
            };
            let mut start = 0;
            self.pattern.scan(part, |base, ends| {
                for &end in ends {
                    let mut word: Vec<Vec<u8>> =
                        part[start..base + end as usize].iter().map(|&byte| vec![byte]).collect();
                    start = base + end as usize;
                    for (left, right) in &self.merges {
                        let mut position = 0;
                        while position + 1 < word.len() {
                            if word[position] == *left && word[position + 1] == *right {
                                let joined = [left.as_slice(), right].concat();
                                word.splice(position..position + 2, [joined]);
                            }
                            position += 1;
                        }
                    }
                    ids.extend(
                        word.iter()
                            .filter_map(|token| self.tokens.iter().position(|t| t == token))
                            .map(id_of),
                    );
                }
                Ok(())
            })
        })?;
        Ok(ids)
    }
}

#[test]
fn every_method_of_encoding_yields_the_ids_of_the_definition() -> Result<()> {
    let mut random = Random::new(1);
    for round in 0..60 {
        let expression = ["gpt2", "gpt4", r"[^ ]+ [^ ]+|\s"][round % 3];
        let num_merges = random.below(80);
        let trained = train(&mut random, expression, num_merges)?;
        for _ in 0..8 {
            let text = random.text(60);
            let expected = trained.by_definition(&text)?;
            let mut ids: Vec<u32> = Vec::new();
            trained.encoder.encode(&text, &mut ids)?;
            assert_eq!(ids, expected, "{:?}", String::from_utf8_lossy(&text));

            let mut narrow: Vec<u16> = Vec::new();
            trained.encoder.encode(&text, &mut narrow)?;
            assert!(narrow.iter().map(|&id| u32::from(id)).eq(expected.iter().copied()));

            let mut stream = Stream::new();
            let mut ids: Vec<u32> = Vec::new();
            let mut start = 0;
            while start < text.len() {
                let end = (start + random.below(9)).min(text.len());
                stream.feed(&trained.encoder, &text[start..end], &mut ids)?;
                start = end;
            }
            stream.finish(&trained.encoder, &mut ids)?;
            assert_eq!(ids, expected, "{:?} as a stream", String::from_utf8_lossy(&text));

            let mut decoded = Vec::new();
            trained.encoder.tokens().decode(expected.iter().copied(), &mut decoded)?;
            assert_eq!(decoded, text);
        }
    }
    Ok(())
}

#[test]
fn long_words_are_merged_like_short_ones() -> Result<()> {
    let mut random = Random::new(2);
    for _ in 0..40 {
        let trained = train(&mut random, "(?s).+", 60)?; // all of a text is one word
        for _ in 0..4 {
            let text: Vec<u8> =
                random.text(80).into_iter().filter(|&byte| byte != b'<' && byte != b'e').collect();
            let mut ids: Vec<u32> = Vec::new();
            trained.encoder.encode(&text, &mut ids)?;
            assert_eq!(ids, trained.by_definition(&text)?, "{:?}", String::from_utf8_lossy(&text));
        }
    }
    Ok(())
}

#[test]
fn batches_are_encoded_in_order_for_any_number_of_threads() -> Result<()> {
    let mut random = Random::new(3);
    let trained = train(&mut random, "gpt2", 80)?;
    let texts: Vec<Vec<u8>> = (0..300).map(|_| random.text(2000)).collect();
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    let expected = trained.encoder.encode_batch::<u32>(&texts, 1)?;
    assert_eq!(expected.places.len(), texts.len());
    for (text, expected) in texts.iter().zip(expected.iter()) {
        let mut ids: Vec<u32> = Vec::new();
        trained.encoder.encode(text, &mut ids)?;
        assert_eq!(ids, expected);
    }
    for num_threads in [0, 2, 3, 8, usize::MAX] {
        assert!(trained.encoder.encode_batch::<u32>(&texts, num_threads)?.iter().eq(expected.iter()));
    }
    Ok(())
}

#[test]
fn selected_special_tokens_are_recognised_and_others_rejected() -> Result<()> {
    let mut random = Random::new(4);
    let trained = train(&mut random, "gpt2", 0)?;
    let encode = |allowed: &[&str], disallowed: &[&str]| {
        let owned = |tokens: &[&str]| tokens.iter().map(|&token| token.to_owned()).collect::<Vec<_>>();
        let mut ids: Vec<u32> = Vec::new();
        let outcome = trained.encoder.encode_selected(b"x<e>", &owned(allowed), &owned(disallowed), &mut ids);
        outcome.map(|()| ids)
    };
    let spelled_out: Vec<u32> = b"x<e>".iter().map(|&byte| id_of(byte.into())).collect();
    assert_eq!(encode(&["<e>"], &[])?, [spelled_out[0], id_of(256)]);
    assert_eq!(encode(&[], &[])?, spelled_out);
    assert!(matches!(encode(&[], &["<e>"]), Err(Error::DisallowedSpecial { position: 1, .. })));
    assert!(matches!(encode(&["<x>"], &[]), Err(Error::Vocabulary(_))));
    assert!(matches!(encode(&[], &[""]), Err(Error::Vocabulary(_))));
    Ok(())
}

#[test]
fn an_unknown_id_is_an_error_with_its_position() -> Result<()> {
    let trained = train(&mut Random::new(5), "gpt2", 0)?;
    let mut decoded = Vec::new();
    let outcome = trained.encoder.tokens().decode([1, 4, 2].into_iter(), &mut decoded);
    assert!(matches!(outcome, Err(Error::UnknownId { id: 2, position: 2 })));
    Ok(())
}

#[test]
fn a_byte_without_a_token_is_an_error_with_its_position() -> Result<()> {
    let tokens: Vec<(u32, Vec<u8>)> =
        vec![(0, b"a".into()), (1, b"b".into()), (2, b"ab".into()), (9, b"<e>".into())];
    let merges = [(b"a".to_vec(), b"b".to_vec())];
    let specials = vec![("<e>".to_owned(), 9)];
    let encoder = Encoder::new(&tokens, &merges, specials.clone(), Pattern::Gpt2)?;
    assert_eq!(encoder.encode_whole::<u32>(b"ab<e>ba")?, [2, 9, 1, 0]);
    let text = [&b"ab<e>".repeat(200_000)[..], b"ax", &b"<e>ay".repeat(200_000)].concat();
    for num_threads in [1, 2, 3] {
        let outcome = encoder.encode_parallel::<u32>(&text, num_threads);
        assert!(matches!(outcome, Err(Error::ByteWithoutToken { byte: b'x', position: 1_000_001 })));
    }
    let (mut stream, mut ids) = (Stream::new(), Vec::<u32>::new());
    let mut feed = || text.chunks(1000).try_for_each(|piece| stream.feed(&encoder, piece, &mut ids));
    assert!(matches!(feed(), Err(Error::ByteWithoutToken { byte: b'x', position: 1_000_001 })));

    let without_b = [tokens[0].clone(), tokens[2].clone()];
    assert!(matches!(Encoder::new(&without_b, &merges, specials, Pattern::Gpt2), Err(Error::Vocabulary(_))));
    Ok(())
}
