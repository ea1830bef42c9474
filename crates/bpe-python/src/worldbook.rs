//! The generator of the world book.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use worldbook::{Alternative, Bucket, Error, Lexicon, Limits, Operation, Part, Program, World, Writer};

use crate::errors::{guarded, out_of_memory};

/// An opcode and its arguments.
type Instruction = (u8, i64, i64, i64, i64);

/// The opcodes; the enumeration `Opcode` of `bytewright.corpus.worldbook.fused` documents their arguments.
mod opcode {
    pub(super) const TEXT: u8 = 0;
    pub(super) const CALL: u8 = 1;
    pub(super) const NEST: u8 = 2;
    pub(super) const PICK: u8 = 3;
    pub(super) const REPEAT: u8 = 4;
    pub(super) const NEW_PERSON: u8 = 5;
    pub(super) const OTHER_PERSON: u8 = 6;
    pub(super) const SAME_PERSON: u8 = 7;
    pub(super) const FACT: u8 = 8;
    pub(super) const PRONOUN: u8 = 9;
    pub(super) const NUMBER: u8 = 10;
    pub(super) const RESULT: u8 = 11;
    pub(super) const TURN: u8 = 12;
    pub(super) const NEW_THING: u8 = 13;
    pub(super) const OLD_THING: u8 = 14;
    pub(super) const SAME_THING: u8 = 15;
    pub(super) const FIRST_HOLDER: u8 = 16;
    pub(super) const NEXT_HOLDER: u8 = 17;
    pub(super) const PRESENT_HOLDER: u8 = 18;
}

/// How numbers change a result, in the order of `OPERATIONS` of the same Python module.
const OPERATIONS: [Operation; 4] =
    [Operation::Replace, Operation::Add, Operation::Subtract, Operation::Multiply];

/// The text of documents, and the length and the bits of each.
type Documents<'py> = (Bound<'py, PyBytes>, Vec<(usize, f64)>);

/// Writes the documents of a world; the fused version of `machine.Machine` with a `GeneratingBuilder`.
#[pyclass(module = "bytewright._native", frozen)]
pub(crate) struct WorldbookWriter {
    writer: Writer,
}

#[pymethods]
impl WorldbookWriter {
    #[new]
    #[pyo3(signature = (*, texts, lexicons, rules, genres, facts, turns, things_and_names, num_variables, recency,
        limits, seed, buckets, syllables))]
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn new(
        texts: Vec<String>,
        lexicons: Vec<(Vec<String>, Vec<String>, Vec<String>, Vec<u64>)>,
        rules: Vec<Vec<(u64, Vec<Instruction>)>>,
        genres: Vec<(usize, u64)>,
        facts: Vec<usize>,
        turns: [(usize, u64); 3],
        things_and_names: (usize, usize),
        num_variables: usize,
        recency: Vec<u64>,
        limits: (u64, usize, usize, u64, u64),
        seed: u64,
        buckets: Vec<(u64, u64, u64)>,
        syllables: Vec<Vec<String>>,
    ) -> PyResult<WorldbookWriter> {
        guarded(|| {
            let lexicons = lexicons
                .into_iter()
                .map(|(plain, article, capital, weights)| Lexicon {
                    forms: [plain, article, capital],
                    weights,
                })
                .collect();
            let rules =
                rules.iter().map(|rule| rule.iter().map(alternative).collect()).collect::<PyResult<_>>()?;
            let (max_sections, max_depth, max_things, urn_gain, stop_weight) = limits;
            let limits = Limits { max_sections, max_depth, max_things, urn_gain, stop_weight };
            let program = Program {
                texts,
                lexicons,
                rules,
                genres,
                facts,
                turns,
                things_and_names,
                num_variables,
                recency,
                limits,
            };
            let buckets =
                buckets.into_iter().map(|(first, size, weight)| Bucket { first, size, weight }).collect();
            let writer = Writer::new(program, World { seed, buckets, syllables }).map_err(to_python)?;
            Ok(WorldbookWriter { writer })
        })
    }

    /// Return the text of documents, each followed by `separator`, and the length and the bits of each.
    fn write<'py>(
        &self,
        py: Python<'py>,
        split: u64,
        seed: u64,
        first: u64,
        count: usize,
        separator: &[u8],
    ) -> PyResult<Documents<'py>> {
        guarded(|| {
            let (text, documents) = py
                .detach(|| {
                    let (mut text, mut documents) = (Vec::new(), Vec::new());
                    for index in first..first.saturating_add(count as u64) {
                        let start = text.len();
                        let bits = self.writer.write(split, seed, index, &mut text)?;
                        text.try_reserve(separator.len())?;
                        text.extend_from_slice(separator);
                        documents.try_reserve(1)?;
                        documents.push((text.len() - start, bits));
                    }
                    Ok((text, documents))
                })
                .map_err(to_python)?;
            Ok((PyBytes::new(py, &text), documents))
        })
    }
}

fn alternative(given: &(u64, Vec<Instruction>)) -> PyResult<Alternative> {
    let parts = given.1.iter().map(part).collect::<PyResult<_>>()?;
    Ok(Alternative { weight: given.0, parts })
}

/// Decode an instruction. Arguments are indices, where -1 means none, except the bounds of `NUMBER`.
fn part(&(opcode, a, b, c, d): &Instruction) -> PyResult<Part> {
    let index = |value: i64| usize::try_from(value).map_err(|_| PyValueError::new_err("negative index"));
    let optional = |value: i64| usize::try_from(value).ok();
    Ok(match opcode {
        opcode::TEXT => Part::Text(index(a)?),
        opcode::CALL => Part::Call(index(a)?),
        opcode::NEST => Part::Nest(index(a)?),
        opcode::PICK => Part::Pick(index(a)?, index(b)?, optional(c), optional(d)),
        opcode::REPEAT => Part::Repeat(index(a)?, index(b)?, index(c)?),
        opcode::NEW_PERSON => Part::NewPerson,
        opcode::OTHER_PERSON => Part::OtherPerson,
        opcode::SAME_PERSON => Part::SamePerson,
        opcode::FACT => Part::Fact(index(a)?, index(b)?),
        opcode::PRONOUN => Part::Pronoun(index(a)?, index(b)?),
        opcode::NUMBER => Part::Number(decode_operation(a)?, b, c),
        opcode::RESULT => Part::Result,
        opcode::TURN => Part::Turn,
        opcode::NEW_THING => Part::NewThing(index(a)?),
        opcode::OLD_THING => Part::OldThing(index(a)?),
        opcode::SAME_THING => Part::SameThing(index(a)?),
        opcode::FIRST_HOLDER => Part::FirstHolder,
        opcode::NEXT_HOLDER => Part::NextHolder,
        opcode::PRESENT_HOLDER => Part::PresentHolder,
        _ => return Err(PyValueError::new_err(format!("unknown opcode {opcode}"))),
    })
}

fn decode_operation(index: i64) -> PyResult<Operation> {
    let operation = usize::try_from(index).ok().and_then(|index| OPERATIONS.get(index));
    operation.copied().ok_or_else(|| PyValueError::new_err(format!("unknown operation {index}")))
}

fn to_python(error: Error) -> PyErr {
    match error {
        Error::Memory => out_of_memory(()),
        Error::Program(problem) => PyValueError::new_err(problem),
    }
}
