//! The generator of the world book.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use worldbook::{Alternative, Bucket, Error, Lexicon, Limits, Part, Program, World, Writer};

use crate::errors::{guarded, out_of_memory};

/// An operation and its arguments; `bytewright.corpus.worldbook.fused` documents them.
type Instruction = (u8, i64, i64, i64, i64);

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

fn part(&(operation, a, b, c, d): &Instruction) -> PyResult<Part> {
    let index = |value: i64| usize::try_from(value).map_err(|_| PyValueError::new_err("negative index"));
    let optional = |value: i64| usize::try_from(value).ok();
    Ok(match operation {
        0 => Part::Text(index(a)?),
        1 => Part::Call(index(a)?),
        2 => Part::Nest(index(a)?),
        3 => Part::Pick(index(a)?, index(b)?, optional(c), optional(d)),
        4 => Part::Mention(index(a)?, index(b)?, index(c)?),
        5 => Part::NewPerson,
        6 => Part::OtherPerson,
        7 => Part::PersonName,
        8 => Part::Fact(index(a)?, index(b)?),
        9 => Part::Pronoun(index(a)?, index(b)?),
        10 => Part::Number(index(a)?, b, c),
        11 => Part::Result,
        12 => Part::Turn,
        13 => Part::NewThing(index(a)?),
        14 => Part::OldThing(index(a)?),
        15 => Part::SameThing(index(a)?),
        16 => Part::FirstHolder,
        17 => Part::NextHolder,
        18 => Part::Holder,
        _ => return Err(PyValueError::new_err(format!("unknown operation {operation}"))),
    })
}

fn to_python(error: Error) -> PyErr {
    match error {
        Error::Memory => out_of_memory(()),
        Error::Program(problem) => PyValueError::new_err(problem),
    }
}
