//! Execute a program: the fused version of `machine.py` with its `GeneratingBuilder`.

use crate::program::{Operation, Part, Program, nests};
use crate::world::{People, Person, Stream, World};
use crate::{Error, Result};

/// A choice with its cumulative weights.
struct Table {
    cumulative: Vec<u64>,
}

impl Table {
    fn new(weights: impl Iterator<Item = u64>) -> Result<Table> {
        let mut cumulative = Vec::new();
        let mut total = 0_u64;
        for weight in weights {
            cumulative.try_reserve(1)?;
            total = total.checked_add(weight).ok_or(Error::Program("weights overflow"))?;
            cumulative.push(total);
        }
        Ok(Table { cumulative })
    }

    fn total(&self) -> u64 {
        self.cumulative.last().copied().unwrap_or(1)
    }

    fn weight(&self, number: usize) -> u64 {
        self.cumulative[number] - if number == 0 { 0 } else { self.cumulative[number - 1] }
    }

    fn find(&self, drawn: u64) -> usize {
        self.cumulative.partition_point(|&sum| sum <= drawn)
    }

    fn draw(&self, stream: &mut Stream, bits: &mut f64) -> usize {
        let number = self.find(stream.below(self.total()));
        *bits += (self.total() as f64 / self.weight(number) as f64).log2();
        number
    }
}

/// Writes the documents of a world.
pub struct Writer {
    program: Program,
    people: People,
    lexicons: Vec<Table>,
    /// The choice of each rule, and the same at the deepest level.
    rules: Vec<[Table; 2]>,
    /// The choice among the things in play, for each number of them.
    recency: Vec<Table>,
    /// The choices of a turn: without things, with things, and with as many as possible.
    turns: [Table; 3],
}

/// A thing in play.
#[derive(Clone, Copy)]
struct Held {
    thing: usize,
    holder: usize,
}

/// The state of a document.
struct State<'a> {
    stream: Stream,
    out: &'a mut Vec<u8>,
    bits: f64,
    depth: usize,
    /// The thing that was mentioned last comes first.
    things: Vec<Held>,
    new: Held,
}

/// The variables of a section or of a level of nesting.
struct Frame {
    words: Vec<usize>,
    main: Person,
    person: Person,
    result: i64,
}

impl State<'_> {
    fn put(&mut self, text: &str) -> Result<()> {
        self.out.try_reserve(text.len())?;
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// A word other than `other`, which is drawn again.
    fn draw_one_other(&mut self, table: &Table, other: usize) -> usize {
        let left = table.total() - table.weight(other);
        loop {
            let number = table.find(self.stream.below(table.total()));
            if number != other {
                self.bits += (left as f64 / table.weight(number) as f64).log2();
                return number;
            }
        }
    }

    /// A thing that is not in play; things in play are drawn again.
    fn draw_new_thing(&mut self, table: &Table) -> usize {
        let excluded: u64 = self.things.iter().map(|held| table.weight(held.thing)).sum();
        let left = table.total() - excluded;
        loop {
            let number = table.find(self.stream.below(table.total()));
            if self.things.iter().all(|held| held.thing != number) {
                self.bits += (left as f64 / table.weight(number) as f64).log2();
                return number;
            }
        }
    }
}

impl Writer {
    /// Check a program and a world, and prepare their choices.
    ///
    /// # Errors
    /// If an index leaves its table, a choice has no weight, or memory is exhausted.
    pub fn new(program: Program, world: World) -> Result<Writer> {
        program.check()?;
        let mut lexicons = Vec::new();
        for lexicon in &program.lexicons {
            lexicons.try_reserve(1)?;
            lexicons.push(Table::new(lexicon.weights.iter().copied())?);
        }
        let mut rules = Vec::new();
        for rule in &program.rules {
            rules.try_reserve(1)?;
            rules.push([
                Table::new(rule.iter().map(|each| each.weight))?,
                Table::new(rule.iter().map(|each| if nests(each) { 0 } else { each.weight }))?,
            ]);
        }
        let mut recency = Vec::new();
        for size in 1..=program.limits.max_things {
            recency.try_reserve(1)?;
            recency.push(Table::new(program.recency.iter().take(size).copied())?);
        }
        let [introduce, move_, ask] = program.turns.map(|(_, weight)| weight);
        let turns = [
            Table::new([introduce, 0, 0].into_iter())?,
            Table::new([introduce, move_, ask].into_iter())?,
            Table::new([0, move_, ask].into_iter())?,
        ];
        Ok(Writer { people: People::new(world)?, program, lexicons, rules, recency, turns })
    }

    /// Append a document to `out`; return its bits.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn write(&self, split: u64, seed: u64, index: u64, out: &mut Vec<u8>) -> Result<f64> {
        let limits = self.program.limits;
        let stream = Stream::new(&[self.people.seed(), 3, split, seed, index]);
        let new = Held { thing: 0, holder: 0 };
        let mut state = State { stream, out, bits: 0.0, depth: 0, things: Vec::new(), new };
        state.things.try_reserve_exact(limits.max_things)?;
        let mut weights = Vec::new();
        weights.try_reserve_exact(self.program.genres.len())?;
        weights.extend(self.program.genres.iter().map(|&(_, weight)| weight));
        for num_sections in 1..=limits.max_sections {
            let urn = Table::new(weights.iter().copied())?;
            let genre = urn.draw(&mut state.stream, &mut state.bits);
            weights[genre] = weights[genre].saturating_add(limits.urn_gain);
            self.write_rule(self.program.genres[genre].0, &mut state, &mut self.new_frame()?)?;
            let go = if num_sections < limits.max_sections { num_sections + 1 } else { 0 };
            let total = limits.stop_weight + go;
            let goes_on = state.stream.below(total) >= limits.stop_weight;
            let weight = if goes_on { go } else { limits.stop_weight };
            state.bits += (total as f64 / weight as f64).log2();
            if !goes_on {
                break;
            }
            state.put("\n\n")?;
        }
        Ok(state.bits)
    }

    fn new_frame(&self) -> Result<Frame> {
        let mut words = Vec::new();
        words.try_reserve_exact(self.program.num_variables)?;
        words.resize(self.program.num_variables, 0);
        Ok(Frame { words, main: Person::default(), person: Person::default(), result: 0 })
    }

    fn write_rule(&self, rule: usize, state: &mut State<'_>, frame: &mut Frame) -> Result<()> {
        let alternatives = &self.program.rules[rule];
        let mut number = 0;
        if alternatives.len() > 1 {
            let is_deepest = state.depth == self.program.limits.max_depth;
            number = self.rules[rule][usize::from(is_deepest)].draw(&mut state.stream, &mut state.bits);
        }
        for &part in &alternatives[number].parts {
            self.write_part(part, state, frame)?;
        }
        Ok(())
    }

    fn write_part(&self, part: Part, state: &mut State<'_>, frame: &mut Frame) -> Result<()> {
        let (things, names) = self.program.things_and_names;
        match part {
            Part::Text(text) => state.put(&self.program.texts[text]),
            Part::Call(rule) => self.write_rule(rule, state, frame),
            Part::Nest(rule) => {
                state.depth += 1;
                self.write_rule(rule, state, &mut self.new_frame()?)?;
                state.depth -= 1;
                Ok(())
            }
            Part::Pick(lexicon, form, variable, other) => {
                let table = &self.lexicons[lexicon];
                let number = match other {
                    None => table.draw(&mut state.stream, &mut state.bits),
                    Some(other) => state.draw_one_other(table, frame.words[other]),
                };
                if let Some(variable) = variable {
                    frame.words[variable] = number;
                }
                self.put_word(lexicon, form, number, state)
            }
            Part::Repeat(variable, lexicon, form) => {
                self.put_word(lexicon, form, frame.words[variable], state)
            }
            Part::NewPerson => self.write_new_person(state, frame),
            Part::OtherPerson => self.write_other_person(state, frame),
            Part::SamePerson => self.put_name(state, frame),
            Part::Fact(kind, form) => self.write_fact(kind, form, state, frame),
            Part::Pronoun(woman, man) => {
                let text = if People::is_woman(frame.person.number) { woman } else { man };
                state.put(&self.program.texts[text])
            }
            Part::Number(operation, low, high) => write_number(operation, low, high, state, frame),
            Part::Result => put_number(state, frame.result),
            Part::Turn => self.write_turn(state, frame),
            Part::NewThing(form) => {
                state.new.thing = state.draw_new_thing(&self.lexicons[things]);
                self.put_word(things, form, state.new.thing, state)
            }
            Part::OldThing(form) => self.write_old_thing(form, state),
            Part::SameThing(form) => self.put_word(things, form, last_thing(state).thing, state),
            Part::FirstHolder => {
                state.new.holder = self.lexicons[names].draw(&mut state.stream, &mut state.bits);
                self.put_word(names, 0, state.new.holder, state)
            }
            Part::NextHolder => self.write_next_holder(state),
            Part::PresentHolder => self.put_word(names, 0, last_thing(state).holder, state),
        }
    }

    #[inline(always)] // otherwise the writer is about 1 % slower
    fn put_word(&self, lexicon: usize, form: usize, number: usize, state: &mut State<'_>) -> Result<()> {
        state.put(&self.program.lexicons[lexicon].forms[form][number])
    }

    fn write_new_person(&self, state: &mut State<'_>, frame: &mut Frame) -> Result<()> {
        frame.person = self.people.draw(&mut state.stream, 0);
        frame.main = frame.person;
        state.bits -= frame.person.share.log2();
        self.put_name(state, frame)
    }

    fn write_other_person(&self, state: &mut State<'_>, frame: &mut Frame) -> Result<()> {
        frame.person = self.people.draw(&mut state.stream, frame.main.rank);
        state.bits += (1.0 - frame.main.share).log2() - frame.person.share.log2();
        self.put_name(state, frame)
    }

    fn write_fact(&self, kind: usize, form: usize, state: &mut State<'_>, frame: &Frame) -> Result<()> {
        let lexicon = self.program.facts[kind];
        let num_values = self.program.lexicons[lexicon].weights.len();
        let value = self.people.fact(frame.person.number, kind as u64, num_values);
        self.put_word(lexicon, form, value, state)
    }

    fn write_old_thing(&self, form: usize, state: &mut State<'_>) -> Result<()> {
        let table = &self.recency[state.things.len() - 1]; // a thing is in play: `Program::check`
        let position = table.draw(&mut state.stream, &mut state.bits);
        state.things[..=position].rotate_right(1);
        self.put_word(self.program.things_and_names.0, form, state.things[0].thing, state)
    }

    fn write_next_holder(&self, state: &mut State<'_>) -> Result<()> {
        let names = self.program.things_and_names.1;
        let next = state.draw_one_other(&self.lexicons[names], last_thing(state).holder);
        state.things[0].holder = next;
        self.put_word(names, 0, next, state)
    }

    fn write_turn(&self, state: &mut State<'_>, frame: &mut Frame) -> Result<()> {
        let size = state.things.len();
        let table = if size == 0 {
            0
        } else if size < self.program.limits.max_things {
            1
        } else {
            2
        };
        let turn = self.turns[table].draw(&mut state.stream, &mut state.bits);
        self.write_rule(self.program.turns[turn].0, state, frame)?;
        if turn == 0 {
            state.things.try_reserve(1)?;
            state.things.insert(0, state.new);
        }
        Ok(())
    }

    fn put_name(&self, state: &mut State<'_>, frame: &Frame) -> Result<()> {
        for (place, syllable) in self.people.spell(frame.person.number).into_iter().enumerate() {
            if place == 3 {
                state.put(" ")?;
            }
            state.put(syllable)?;
        }
        Ok(())
    }
}

/// The thing that was mentioned last; `Program::check` ensures that one is in play.
fn last_thing(state: &State<'_>) -> Held {
    state.things[0]
}

fn write_number(
    operation: Operation,
    low: i64,
    high: i64,
    state: &mut State<'_>,
    frame: &mut Frame,
) -> Result<()> {
    let range = (high - low + 1) as u64;
    let number = low + state.stream.below(range) as i64;
    state.bits += (range as f64).log2();
    frame.result = match operation {
        Operation::Replace => number,
        // `Program::check` ensures that none of these overflows
        Operation::Add => frame.result + number,
        Operation::Subtract => frame.result - number,
        Operation::Multiply => frame.result * number,
    };
    put_number(state, number)
}

fn put_number(state: &mut State<'_>, number: i64) -> Result<()> {
    let mut digits = [0_u8; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    while start == digits.len() || rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if number < 0 {
        state.put("-")?;
    }
    state.put(std::str::from_utf8(&digits[start..]).unwrap_or_default())
}
