//! Invalid vocabularies: exactly those are rejected that lack a token of a merge, use a token before its merge or
//! produce one twice. All others yield the ids of the vocabulary, or an error with the first byte without a token.
#![no_main]

use std::collections::{HashMap, HashSet};

use bpe::encode::Encoder;
use bpe::error::Error;
use bpe::merge::Symbol;
use bpe_fuzz::draw::Draw;
use bpe_fuzz::naive::{self, Part};
use libfuzzer_sys::fuzz_target;

type Token = (u32, Vec<u8>);
type Merges = Vec<(Vec<u8>, Vec<u8>)>;
type Symbols = HashMap<Vec<u8>, Symbol>;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let pattern = draw.pattern();
    let merges = draw_merges(&mut draw);
    let made = merges.iter().map(|(left, right)| [left.as_slice(), right].concat());
    let tokens = (0..=255).map(|byte| vec![byte]).chain(made);
    let mut tokens: Vec<Token> = (0..).zip(tokens).collect();
    for _ in 0..draw.byte() % 4 {
        let (index, id) = (draw.below(tokens.len()), draw.below(300) as u32);
        match draw.byte() % 8 {
            0 => drop(tokens.remove(index)),
            1 => tokens[index].1 = draw.bytes(2).to_vec(),
            2 => tokens[index].0 = id,
            3 => tokens[index].0 = u32::MAX - id,
            4 => tokens.push((id, tokens[index].1.clone())),
            _ => {}
        }
    }
    let special_tokens = draw.specials(3);
    let specials: Vec<(String, u32)> = special_tokens
        .iter()
        .map(|special| (special.clone(), if draw.once_in(16) { draw.below(600) as u32 } else { 1000 }))
        .collect();
    let text = draw.rest(&special_tokens);

    let expected = ids_of_symbols(&tokens, &merges, &specials);
    let encoder = match (Encoder::new(&tokens, &merges, specials.clone(), pattern.clone()), &expected) {
        (Ok(encoder), Some(_)) => encoder,
        (Err(Error::Vocabulary(_)), None) => return,
        (Ok(_), None) => panic!("accepted"),
        (Err(error), _) => panic!("refused: {error}"),
    };

    let Some((symbols, ids)) = expected else { return };
    let mut lacking = None;
    let mut position = 0;
    for part in naive::split(&special_tokens, &text) {
        position += match part {
            Part::Special(index, _) => special_tokens[index].len(),
            Part::Text(text) => {
                let first = text.iter().position(|&byte| ids[usize::from(byte)].is_none());
                lacking = lacking.or(first.map(|offset| (text[offset], position + offset)));
                text.len()
            }
        };
    }
    let mut encoded: Vec<u32> = Vec::new();
    let outcome = encoder.encode(&text, &mut encoded);
    if let Some(lacking) = lacking {
        match outcome {
            Err(Error::ByteWithoutToken { byte, position }) => assert_eq!((byte, position), lacking),
            other => panic!("{other:?} instead of {lacking:?}"),
        }
        return;
    }
    outcome.expect("these expressions do not give up");
    let pairs: Vec<(Symbol, Symbol)> = merges.iter().map(|(a, b)| (symbols[a], symbols[b])).collect();
    let mut expected = Vec::new();
    for part in naive::pre_tokens(&pattern, &special_tokens, &text).expect("these expressions do not give up")
    {
        match part {
            Part::Special(index, _) => expected.push(specials[index].1),
            Part::Text(word) => {
                expected.extend(
                    naive::merge_word(&pairs, &word).iter().filter_map(|&symbol| ids[symbol as usize]),
                );
            }
        }
    }
    assert_eq!(encoded, expected);
});

/// Merges of what there is and, now and then, of what there is not, or not yet.
fn draw_merges(draw: &mut Draw) -> Merges {
    let mut merges: Merges = Vec::new();
    for _ in 0..draw.byte() % 32 {
        let mut half = || match draw.byte() {
            0..=149 => draw.bytes(1).to_vec(),
            150..=250 if !merges.is_empty() => {
                let (left, right) = &merges[draw.below(merges.len())];
                [left.as_slice(), right].concat()
            }
            _ => {
                let len = draw.byte() % 4;
                draw.bytes(len.into()).to_vec()
            }
        };
        let pair = (half(), half());
        if pair.0.len() + pair.1.len() <= 100 {
            merges.push(pair);
        }
    }
    merges
}

/// The symbol of every token, and the id of every symbol, if the vocabulary makes sense. A byte that no merge uses may
/// have none.
fn ids_of_symbols(
    tokens: &[Token],
    merges: &Merges,
    specials: &[(String, u32)],
) -> Option<(Symbols, Vec<Option<u32>>)> {
    let mut symbols: Symbols = (0..=255).map(|byte| (vec![byte], byte.into())).collect();
    let mut in_order: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    for (left, right) in merges {
        let token = [left.as_slice(), right].concat();
        if !symbols.contains_key(left) || !symbols.contains_key(right) || symbols.contains_key(&token) {
            return None;
        }
        symbols.insert(token.clone(), in_order.len() as Symbol);
        in_order.push(token);
    }
    let special_ids: HashSet<u32> = specials.iter().map(|(_, id)| *id).collect();
    let ordinary = |wanted: &Vec<u8>| {
        // Where a token has two ids, the later one counts.
        let found = tokens.iter().rev().find(|(id, token)| token == wanted && !special_ids.contains(id));
        found.map(|(id, _)| *id)
    };
    let ids: Vec<Option<u32>> = in_order.iter().map(ordinary).collect();
    let has_id = |token: &Vec<u8>| ids[symbols[token] as usize].is_some();
    let is_sound = ids[256..].iter().all(Option::is_some)
        && merges.iter().all(|(left, right)| has_id(left) && has_id(right));
    is_sound.then_some((symbols, ids))
}
