//! Special tokens: the search finds the same tokens as trying every token at every position.
#![no_main]

use std::convert::Infallible;

use bpe::special::{Piece, Specials};
use bpe_fuzz::draw::Draw;
use bpe_fuzz::naive::{self, Part};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let mut tokens = draw.specials(12);
    if draw.once_in(64) {
        tokens.push(String::new());
        assert!(Specials::new(tokens).is_err(), "an empty special token is accepted");
        return;
    }
    let limit = draw.below(1 << 16);
    let text = draw.rest(&tokens);
    let limit = limit % (text.len() + 2);
    let specials = Specials::new(tokens.clone()).expect("no special token is empty");
    assert_eq!(specials.longest(), tokens.iter().map(String::len).max().unwrap_or(0));
    for index in 0..=tokens.len() {
        assert_eq!(specials.token(index), tokens.get(index).map(String::as_str));
    }

    let expected = naive::split(&tokens, &text);
    let mut parts = Vec::new();
    let Ok(()) = specials.split(&text, |piece| {
        parts.push(match piece {
            Piece::Text(text) => Part::Text(text.to_vec()),
            Piece::Special { index, position } => Part::Special(index, position),
        });
        Ok::<(), Infallible>(())
    });
    assert_eq!(parts, expected);

    // The visitor's first complaint ends the search and comes back.
    let stop_after = limit % (expected.len() + 1);
    let mut visited = 0;
    let outcome = specials.split(&text, |_| {
        visited += 1;
        if visited > stop_after { Err(visited) } else { Ok(()) }
    });
    assert_eq!(outcome, if stop_after < expected.len() { Err(stop_after + 1) } else { Ok(()) });

    let ends: Vec<usize> = expected
        .iter()
        .filter_map(|part| match part {
            Part::Special(index, position) => Some(position + tokens[*index].len()),
            Part::Text(_) => None,
        })
        .collect();
    assert_eq!(specials.last_end(&text, limit), ends.iter().copied().rfind(|&end| end <= limit));
    assert_eq!(specials.next_end(&text, limit), ends.iter().copied().find(|&end| end >= limit));

    let covers = tokens.iter().any(|token| {
        let starts = (0..text.len()).filter(|&start| text[start..].starts_with(token.as_bytes()));
        starts.into_iter().any(|start| start < limit && limit < start + token.len())
    });
    if limit <= text.len() {
        assert_eq!(specials.covers(&text, limit), covers);
    }
});
