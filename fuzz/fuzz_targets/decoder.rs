//! Decoding: any ids with any vocabulary yield the bytes of a look-up in a map, or an error with the first missing id.
#![no_main]

use std::collections::HashMap;

use bpe::decode::TokenBytes;
use bpe::error::Error;
use bpe_fuzz::draw::Draw;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut draw = Draw::new(data);
    let spread = [1, 1, 5, 40_000][draw.below(4)];
    let num_tokens = draw.below(400);
    let tokens: Vec<(u32, Vec<u8>)> = (0..num_tokens)
        .map(|number| {
            let id = if draw.once_in(16) { any_id(&mut draw) } else { number as u32 * spread };
            let len = usize::from(draw.byte() % 9);
            (id, draw.bytes(len).to_vec())
        })
        .collect();
    let ids: Vec<u32> = (0..draw.below(400))
        .map(|_| match draw.byte() {
            0..=223 if !tokens.is_empty() => tokens[draw.below(tokens.len())].0,
            _ => any_id(&mut draw),
        })
        .collect();

    // No token is empty: an empty token counts as missing.
    let by_id: HashMap<u32, &[u8]> = tokens.iter().map(|(id, token)| (*id, token.as_slice())).collect();
    let look_up = |id: &u32| by_id.get(id).copied().filter(|token| !token.is_empty());
    let decoder = TokenBytes::new(&tokens).expect("there is memory");
    for id in tokens.iter().map(|(id, _)| id).chain(&ids) {
        assert_eq!(decoder.get(*id), look_up(id), "id {id}");
    }

    let mut decoded = b"kept".to_vec();
    let outcome = decoder.decode(ids.iter().copied(), &mut decoded);
    let mut expected = b"kept".to_vec();
    let unknown =
        ids.iter().position(|id| look_up(id).map(|token| expected.extend_from_slice(token)).is_none());
    assert_eq!(decoded, expected);
    match (outcome, unknown) {
        (Ok(()), None) => {}
        (Err(Error::UnknownId { id, position }), Some(expected)) => {
            assert_eq!((id, position), (ids[expected].into(), expected));
        }
        (outcome, unknown) => panic!("{outcome:?}, though the first unknown id is {unknown:?}"),
    }
});

fn any_id(draw: &mut Draw) -> u32 {
    match draw.byte() {
        0 => u32::MAX - u32::from(draw.byte()),
        1 => 1 << (draw.byte() % 32),
        _ => u32::try_from(draw.below(1 << 16)).expect("below 2^16"),
    }
}
