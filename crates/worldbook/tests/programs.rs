//! Programs are checked once; a valid one always writes the same document for the same key.

use worldbook::{
    Alternative, Bucket, Error, Lexicon, Limits, Operation, Part, Program, World, Writer, mix, mix_all,
};

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

/// A change of the program or of the world, and the problem that it causes.
type Change<T> = (fn(&mut T), &'static str);

#[test]
fn every_inconsistent_program_is_rejected_with_its_problem() {
    let changes: Vec<Change<Program>> = vec![
        (|program| program.genres.clear(), "there is no genre"),
        (|program| program.genres = vec![(9, 1)], "a genre has no rule"),
        (|program| program.turns[2].0 = 99, "a turn has no rule"),
        (|program| program.facts = vec![7], "a fact has no lexicon"),
        (|program| program.lexicons.push(words(&[])), "a lexicon has no words"),
        (
            |program| {
                program.lexicons[0].forms[1].pop();
            },
            "a word lacks a form or a weight",
        ),
        (
            |program| program.lexicons[1] = words(&["Ada"]),
            "fewer than two names: a thing needs a next holder",
        ),
        (|program| program.things_and_names = (5, 1), "there are at most max_things things"),
        (|program| program.limits.max_things = 3, "there are at most max_things things"),
        (|program| program.recency = vec![1], "fewer recency weights than max_things"),
        (|program| program.limits.max_things = 0, "max_things is 0"),
        (|program| program.limits.stop_weight = 0, "stop_weight is 0"),
        (|program| program.recency = vec![1, 0], "a recency weight is 0"),
        (|program| program.genres = vec![(0, 0)], "a genre has the weight 0"),
        (|program| program.turns[0].1 = 0, "a turn has the weight 0"),
        (|program| program.lexicons[0].weights[1] = 0, "a word has the weight 0"),
        (|program| program.limits.urn_gain = u64::MAX, "the weights of the genres overflow"),
        (
            |program| {
                program.limits.urn_gain = 0;
                program.limits.max_sections = u64::MAX;
            },
            "stop_weight + max_sections overflows",
        ),
        (|program| program.rules[0][0].weight = 0, "an alternative has the weight 0"),
        (|program| program.rules[0].clear(), "a rule has no alternative at the deepest level"),
        (
            |program| program.rules[0] = rule(vec![Part::Nest(0)]),
            "a rule has no alternative at the deepest level",
        ),
        (|program| program.rules[0] = rule(vec![Part::Text(99)]), "a part has an unknown text"),
        (|program| program.rules[0] = rule(vec![Part::Pronoun(0, 99)]), "a part has an unknown text"),
        (|program| program.rules[0] = rule(vec![Part::Call(99)]), "a part calls an unknown rule"),
        (
            |program| program.rules[0] = rule(vec![Part::Pick(9, 0, None, None)]),
            "a part has an unknown lexicon",
        ),
        (|program| program.rules[0] = rule(vec![Part::Pick(0, 3, None, None)]), "a part has an unknown form"),
        (
            |program| program.rules[0] = rule(vec![Part::Pick(0, 0, Some(0), None)]),
            "a part has an unknown variable",
        ),
        (|program| program.rules[0] = rule(vec![Part::Repeat(0, 0, 0)]), "a part has an unknown variable"),
        (
            |program| {
                program.num_variables = 1;
                program.lexicons.push(words(&["one"]));
                program.rules[0] = rule(vec![Part::Pick(2, 0, None, Some(0))]);
            },
            "a word must differ from another one, but its lexicon has only one",
        ),
        (|program| program.rules[0] = rule(vec![Part::Fact(0, 0)]), "a part has an unknown fact"),
        (
            |program| program.rules[0] = rule(vec![Part::Number(Operation::Replace, 5, 4)]),
            "a range of numbers is empty",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::Number(Operation::Add, -1, 4)]),
            "a range of numbers is not within 0 to 2^20 - 1",
        ),
        (
            |program| {
                program.num_variables = 1;
                program.rules[0] = rule(vec![Part::Pick(1, 0, Some(0), None), Part::Repeat(0, 0, 0)]);
            },
            "a variable has words of two lexicons",
        ),
        (|program| program.rules[0] = rule(vec![Part::Call(0)]), "rules call each other without end"),
        (|program| program.limits.max_depth = 1_000, "rules call each other too deeply"),
        (
            |program| {
                let times = Part::Number(Operation::Multiply, 0, (1 << 20) - 1);
                program.rules.push(rule(vec![Part::Number(Operation::Add, 1, 9), times, times]));
                program.rules[0] = rule(vec![Part::Call(4), times]); // below 2^63, but not after another call
                program.rules[0][0].parts.insert(0, Part::Call(4));
            },
            "the result of a calculation exceeds 64 bits",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::OldThing(0)]),
            "a thing in play or its holder is outside the turns move and ask",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::SameThing(0)]),
            "a thing in play or its holder is outside the turns move and ask",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::NextHolder]),
            "a thing in play or its holder is outside the turns move and ask",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::PresentHolder]),
            "a thing in play or its holder is outside the turns move and ask",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::Call(2)]),
            "a thing in play or its holder is outside the turns move and ask",
        ),
        (
            |program| program.rules[1][0].parts.push(Part::OldThing(0)),
            "a thing in play or its holder is outside the turns move and ask",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::NewThing(0)]),
            "a new thing or a first holder is outside an introduction",
        ),
        (
            |program| program.rules[0] = rule(vec![Part::FirstHolder]),
            "a new thing or a first holder is outside an introduction",
        ),
        (
            |program| program.rules[2][0].parts.push(Part::NewThing(0)),
            "a new thing or a first holder is outside an introduction",
        ),
        (
            |program| {
                program.limits.max_depth = 1; // an introduction inside an introduction
                program.rules.push(rule(vec![Part::Turn]));
                program.rules[1] = rule(vec![Part::FirstHolder, Part::NewThing(0)]);
                let parts = vec![Part::FirstHolder, Part::NewThing(0), Part::Nest(4)];
                program.rules[1].push(Alternative { weight: 1, parts });
            },
            "a turn contains another turn",
        ),
        (|program| program.rules[1] = rule(vec![Part::FirstHolder]), "an introduction has no new thing"),
        (|program| program.rules[1] = rule(vec![Part::NewThing(0)]), "an introduction has no first holder"),
    ];
    for (change, problem) in changes {
        let mut changed = program();
        change(&mut changed);
        let error = Writer::new(changed, world()).err();
        assert_eq!(error, Some(Error::Program(problem)));
    }
}

#[test]
fn every_inconsistent_world_is_rejected_with_its_problem() {
    let changes: Vec<Change<World>> = vec![
        (|world| world.buckets.clear(), "a world needs two people"),
        (|world| world.buckets[0].size = 1, "a world needs two people"),
        (|world| world.buckets[0].weight = 0, "a bucket has no people or the weight 0"),
        (
            |world| world.buckets.push(Bucket { first: 3, size: 0, weight: 1 }),
            "a bucket has no people or the weight 0",
        ),
        (
            |world| world.buckets.push(Bucket { first: 3, size: 1, weight: u64::MAX }),
            "weights of people overflow",
        ),
        (|world| world.buckets[0].first = 1 << 30, "a rank has more than 30 bits"),
        (
            |world| {
                world.syllables.pop();
            },
            "names need 32 syllables for each of six places",
        ),
        (
            |world| {
                world.syllables[5].pop();
            },
            "names need 32 syllables for each of six places",
        ),
    ];
    for (change, problem) in changes {
        let mut changed = world();
        change(&mut changed);
        let error = Writer::new(program(), changed).err();
        assert_eq!(error, Some(Error::Program(problem)));
    }
}
