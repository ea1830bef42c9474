//! Programs are checked once; a valid one always writes the same document for the same key.

use worldbook::{Alternative, Bucket, Error, Lexicon, Limits, Part, Program, World, Writer, mix, mix_all};

fn words(texts: &[&str]) -> Lexicon {
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    Lexicon { weights: vec![1; texts.len()], forms: [texts.clone(), texts.clone(), texts] }
}

fn rule(parts: Vec<Part>) -> Vec<Alternative> {
    vec![Alternative { weight: 1, parts }]
}

/// A section is a turn: somebody gets a thing, passes it on, or is asked about it.
fn program() -> Program {
    Program {
        texts: vec![" got a ".to_owned(), ". ".to_owned(), " passed to ".to_owned(), "? ".to_owned()],
        lexicons: vec![words(&["cup", "bell", "ring"]), words(&["Ada", "Bo"])],
        rules: vec![
            rule(vec![Part::Turn]),
            rule(vec![Part::FirstHolder, Part::Text(0), Part::NewThing(0), Part::Text(1)]),
            rule(vec![Part::OldThing(0), Part::Text(2), Part::NextHolder, Part::Text(1)]),
            rule(vec![Part::OldThing(0), Part::Text(3), Part::PresentHolder, Part::Text(1)]),
        ],
        genres: vec![(0, 1)],
        facts: vec![],
        turns: [(1, 1), (2, 1), (3, 1)],
        things_and_names: (0, 1),
        num_variables: 0,
        recency: vec![2, 1],
        limits: Limits { max_sections: 9, max_depth: 0, max_things: 2, urn_gain: 1, stop_weight: 1 },
    }
}

fn world() -> World {
    let place: Vec<String> = (0..32).map(|number| format!("s{number}")).collect();
    let buckets = vec![Bucket { first: 1, size: 2, weight: 3 }];
    World { seed: 7, buckets, syllables: vec![place; 6] }
}

#[test]
fn the_hashes_are_those_of_the_reference() {
    assert_eq!(mix(1), 0x5692_161d_100b_05e5);
    assert_ne!(mix_all(&[1, 2]), mix_all(&[2, 1]));
}

#[test]
fn a_document_is_a_function_of_its_key() -> Result<(), Error> {
    let (one, two) = (Writer::new(program(), world())?, Writer::new(program(), world())?);
    let (mut first, mut second, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..50 {
        assert_eq!(one.write(0, 1, index, &mut first)?, two.write(0, 1, index, &mut second)?);
        one.write(1, 1, index, &mut other)?;
    }
    assert_eq!(first, second);
    assert_ne!(first, other);
    Ok(())
}

#[test]
fn every_inconsistent_program_is_rejected() {
    let changes: Vec<fn(&mut Program)> = vec![
        |program| program.genres = vec![(9, 1)],
        |program| program.genres.clear(),
        |program| program.genres = vec![(0, 0)],
        |program| program.turns[2].0 = 99,
        |program| program.turns[0].1 = 0,
        |program| program.things_and_names = (5, 1),
        |program| program.recency = vec![1],
        |program| program.recency = vec![1, 0],
        |program| program.limits.max_things = 3,
        |program| program.limits.max_things = 0,
        |program| program.limits.stop_weight = 0,
        |program| program.facts = vec![7],
        |program| program.lexicons[0].weights[1] = 0,
        |program| {
            program.lexicons[0].forms[1].pop();
        },
        |program| program.rules[0] = rule(vec![Part::Text(99)]),
        |program| program.rules[0] = rule(vec![Part::Call(0)]),
        |program| program.rules[0] = rule(vec![Part::Nest(0)]),
        |program| program.rules[0] = rule(vec![Part::Pick(0, 3, None, None)]),
        |program| program.rules[0] = rule(vec![Part::Pick(0, 0, Some(0), None)]),
        |program| program.rules[0] = rule(vec![Part::Fact(0, 0)]),
        |program| program.rules[0] = rule(vec![Part::Number(0, 5, 4)]),
        |program| {
            program.num_variables = 1;
            program.rules[0] = rule(vec![Part::Pick(1, 0, Some(0), None), Part::Repeat(0, 0, 0)]);
        },
        |program| program.rules[0] = rule(vec![Part::OldThing(0)]),
        |program| program.rules[0] = rule(vec![Part::SameThing(0)]),
        |program| program.rules[0] = rule(vec![Part::NewThing(0)]),
        |program| program.rules[0] = rule(vec![Part::FirstHolder]),
        |program| program.rules[0] = rule(vec![Part::NextHolder]),
        |program| program.rules[0] = rule(vec![Part::PresentHolder]),
        |program| program.rules[0] = rule(vec![Part::Call(2)]),
        |program| program.rules[1][0].parts.push(Part::OldThing(0)),
        |program| program.rules[2][0].parts.push(Part::NewThing(0)),
        |program| {
            program.limits.max_depth = 1; // an introduction inside an introduction
            program.rules.push(rule(vec![Part::Turn]));
            program.rules[1] = rule(vec![Part::FirstHolder, Part::NewThing(0)]);
            let parts = vec![Part::FirstHolder, Part::NewThing(0), Part::Nest(4)];
            program.rules[1].push(Alternative { weight: 1, parts });
        },
        |program| program.rules[1] = rule(vec![Part::FirstHolder]),
        |program| program.rules[1] = rule(vec![Part::NewThing(0)]),
        |program| program.limits.max_depth = 1_000,
        |program| program.limits.max_sections = u64::MAX,
        |program| program.limits.urn_gain = u64::MAX,
        |program| program.rules[0].clear(),
        |program| program.rules[0][0].weight = 0,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = program();
        change(&mut changed);
        assert!(matches!(Writer::new(changed, world()), Err(Error::Program(_))), "change {number}");
    }
}

#[test]
fn every_inconsistent_world_is_rejected() {
    let changes: Vec<fn(&mut World)> = vec![
        |world| world.buckets.clear(),
        |world| world.buckets[0].size = 1,
        |world| world.buckets[0].weight = 0,
        |world| world.buckets.push(Bucket { first: 3, size: 1, weight: u64::MAX }),
        |world| world.buckets[0].first = 1 << 30,
        |world| {
            world.syllables.pop();
        },
        |world| {
            world.syllables[5].pop();
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = world();
        change(&mut changed);
        assert!(matches!(Writer::new(program(), changed), Err(Error::Program(_))), "change {number}");
    }
}
