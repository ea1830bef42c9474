//! The cache returns the ids that were stored for a word.

use super::super::packing::{Narrow, Packing};
use super::*;

fn insert(cache: &WordCache, word: &[u8], ids: &[u32]) {
    cache.insert(cache.key(word), word, ids, Narrow::pack(ids));
}

fn ids_of(cache: &WordCache, word: &[u8]) -> Option<Vec<u32>> {
    let key = cache.key(word);
    let packed = cache.view().find(key, dispatch(Approach { view: cache.view(), key }));
    if (1..=Narrow::MOST).contains(&packed.len()) {
        return Some(Narrow::unpack::<u32>(packed).into_iter().take(packed.len()).collect());
    }
    let spilled = cache.spilled(word, packed)?;
    Some(spilled.iter().map(|id| id.load(Ordering::Relaxed)).collect())
}

#[test]
fn words_and_ids_of_every_length_are_found() -> Result<(), OutOfMemory> {
    let cache = WordCache::with_room_for(100_000)?;
    let words: Vec<Vec<u8>> = (1..=LONGEST).map(|len| vec![b'a'; len]).collect();
    let ids = |word: &[u8]| -> Vec<u32> { (0..word.len() as u32).map(|id| 1 + id % 3 * 30_000).collect() };
    for word in &words {
        assert_eq!(ids_of(&cache, word), None);
        insert(&cache, word, &ids(word));
    }
    for word in &words {
        assert_eq!(ids_of(&cache, word), Some(ids(word)));
    }
    let too_long = vec![b'a'; LONGEST + 1];
    insert(&cache, &too_long, &[1]);
    assert_eq!(ids_of(&cache, &too_long), None);
    Ok(())
}

#[test]
fn ids_that_cannot_be_packed_are_found() -> Result<(), OutOfMemory> {
    let cache = WordCache::with_room_for(0)?;
    for (word, ids) in [(b"large", vec![1 << 16]), (b"many-", vec![7; 8]), (b"zero-", vec![0])] {
        insert(&cache, word, &ids);
        assert_eq!(ids_of(&cache, word), Some(ids));
    }
    Ok(())
}

#[test]
fn a_full_cache_reports_it_and_keeps_its_words() -> Result<(), OutOfMemory> {
    let cache = WordCache::with_room_for(0)?;
    let word = |number: u32| number.to_le_bytes();
    let room = cache.places.len() as u32 / 2;
    for number in 0..room {
        insert(&cache, &word(number), &[number]);
    }
    assert!(!cache.is_full());
    insert(&cache, &word(room), &[room]);
    assert!(cache.is_full());
    assert_eq!(ids_of(&cache, &word(room)), None);

    let larger = cache.enlarged()?;
    assert!(!larger.is_full());
    for cache in [&cache, &larger] {
        assert!((0..room).all(|number| ids_of(cache, &word(number)) == Some(vec![number])));
    }
    insert(&larger, &word(room), &[room]);
    assert_eq!(ids_of(&larger, &word(room)), Some(vec![room]));

    cache.clear();
    assert!(!cache.is_full());
    assert!((0..=room).all(|number| ids_of(&cache, &word(number)).is_none()));
    Ok(())
}

#[test]
fn spilled_words_survive_growth_and_can_fill_a_cache() -> Result<(), OutOfMemory> {
    let cache = WordCache::with_room_for(0)?;
    let word = |number: u32| format!("a word that is long, number {number}").into_bytes();
    let mut num_words = 0;
    while !cache.is_full() {
        insert(&cache, &word(num_words), &[num_words; 9]);
        num_words += 1;
    }
    let larger = cache.enlarged()?;
    for number in 0..num_words - 1 {
        assert_eq!(ids_of(&larger, &word(number)), Some(vec![number; 9]));
    }
    assert_eq!(ids_of(&larger, &word(num_words - 1)), None);
    insert(&larger, &word(num_words), &[1]);
    assert_eq!(ids_of(&larger, &word(num_words)), Some(vec![1]));
    Ok(())
}

#[test]
fn the_largest_cache_is_cleared() -> Result<(), OutOfMemory> {
    let cache = WordCache::with_room_for(MAX_WORDS)?;
    insert(&cache, b"word", &[1]);
    let next = cache.enlarged()?;
    assert_eq!((next.places.len(), ids_of(&next, b"word")), (cache.places.len(), None));
    Ok(())
}

#[test]
fn threads_read_only_complete_entries_of_other_threads() -> Result<(), OutOfMemory> {
    let cache = WordCache::with_room_for(1 << 12)?;
    std::thread::scope(|scope| {
        for shift in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for number in 0..1u32 << 12 {
                    let number = number ^ shift << 10;
                    let word = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
                    let ids = vec![number; 1 + number as usize % 9];
                    if let Some(found) = ids_of(cache, &word) {
                        assert_eq!(found, ids);
                    } else {
                        insert(cache, &word, &ids);
                    }
                }
            });
        }
    });
    Ok(())
}

#[test]
fn a_cache_that_is_being_written_to_can_be_enlarged() -> Result<(), OutOfMemory> {
    let ids = |number: u32| [1 + number; 8];
    let word = |number: u32| format!("{number}, spilled").into_bytes();
    for _ in 0..20 {
        let cache = WordCache::with_room_for(1 << 12)?;
        let writers: &[u32] = &[0, 1];
        std::thread::scope(|scope| {
            let handles: Vec<_> = writers
                .iter()
                .map(|&first| {
                    let cache = &cache;
                    scope.spawn(move || {
                        for number in (first..1 << 10).step_by(writers.len()) {
                            insert(cache, &word(number), &ids(number));
                        }
                    })
                })
                .collect();
            while !handles.iter().all(|handle| handle.is_finished()) {
                let Ok(larger) = cache.enlarged() else { continue };
                for number in 0..1 << 10 {
                    let found = ids_of(&larger, &word(number));
                    assert!(found.is_none_or(|found| found == ids(number)));
                }
            }
        });
    }
    Ok(())
}
