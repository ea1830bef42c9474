//! Counting words and learning merges.

use std::path::PathBuf;

use bpe::count::Counter;
use bpe::merge::{self, MergeOptions};
use bpe::pattern::Pattern;
use bpe::special::Specials;
use bpe::word_table;
use bpe::words::VisitWords;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::errors::{IntoPython, guarded, to_python};
use crate::items::Items;
use crate::text::bytes_of;

/// Counts the words (pre-tokens) of texts and files; the fused version of `reference.count_words_reference`.
#[pyclass(module = "bytewright._native")]
pub(crate) struct WordCounter {
    /// `None` after `learn_merges` has consumed the counts.
    counter: Option<Counter>,
    pattern: String,
    has_read: bool,
}

impl WordCounter {
    fn counter(&mut self) -> PyResult<&mut Counter> {
        self.counter
            .as_mut()
            .ok_or_else(|| PyRuntimeError::new_err("these counts have been consumed by learn_merges"))
    }
}

#[pymethods]
impl WordCounter {
    #[new]
    fn new(pattern: String, special_tokens: Items<String>) -> PyResult<WordCounter> {
        guarded(|| {
            let parsed = Pattern::parse(&pattern).into_python()?;
            let specials = Specials::new(special_tokens.0).into_python()?;
            Ok(WordCounter { counter: Some(Counter::new(parsed, specials)), pattern, has_read: false })
        })
    }

    /// The pattern with which texts were split; `None` if only words were added.
    #[getter]
    fn pattern<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        guarded(|| Ok(self.has_read.then(|| PyString::new(py, &self.pattern))))
    }

    /// Count files on several threads; `on_progress` is called with the number of bytes done.
    fn add_files(
        &mut self,
        py: Python<'_>,
        paths: Items<PathBuf>,
        num_threads: usize,
        on_progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        self.has_read = true;
        let counter = self.counter()?;
        guarded(|| watched(py, on_progress, |report| counter.add_files(&paths.0, num_threads, report)))
    }

    /// Count the bytes from `start` to `end` of a file, which must be safe cuts.
    fn add_file_part(&mut self, py: Python<'_>, path: PathBuf, start: usize, end: usize) -> PyResult<()> {
        self.has_read = true;
        let counter = self.counter()?;
        guarded(|| py.detach(|| counter.add_file_part(&path, start..end)).into_python())
    }

    /// Count one text.
    fn add_text(&mut self, py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes_of(text)?;
        self.has_read = true;
        let counter = self.counter()?;
        guarded(|| py.detach(|| counter.add_text(bytes)).into_python())
    }

    /// Count a word `count` times.
    fn add_word(&mut self, word: &[u8], count: u64) -> PyResult<()> {
        let counter = self.counter()?;
        guarded(|| counter.add_word(word, count).into_python())
    }

    /// The counts as the bytes of a table, for `WordTable` in another process.
    fn table_bytes<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let counter = self.counter()?;
        guarded(|| {
            let bytes = py.detach(|| counter.table().and_then(|table| table.to_bytes())).into_python()?;
            Ok(PyBytes::new(py, &bytes))
        })
    }

    /// The first position at or after `start` where a text can be cut, or its end.
    fn next_cut(&mut self, text: &[u8], start: usize) -> PyResult<usize> {
        let counter = self.counter()?;
        guarded(|| Ok(counter.next_cut(text, start)))
    }

    /// A copy of the counts.
    fn copy(&mut self) -> PyResult<WordCounter> {
        let counter = self.counter()?;
        let counter = guarded(|| counter.try_clone().into_python())?;
        Ok(WordCounter { counter: Some(counter), pattern: self.pattern.clone(), has_read: self.has_read })
    }

    /// The counts as a dictionary.
    fn counts<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.counter()?.counts();
        guarded(|| {
            let dictionary = PyDict::new(py);
            counts.try_for_each(|word, count| dictionary.set_item(PyBytes::new(py, word), count))?;
            Ok(dictionary)
        })
    }

    /// Bytes, words, distinct words, thread-seconds of scanning, thread-seconds of counting.
    fn stats<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let counter = self.counter()?;
        let (stats, distinct) = (counter.stats(), counter.counts().num_distinct());
        let (scan, count) = (stats.scan_time.as_secs_f64(), stats.count_time.as_secs_f64());
        guarded(|| (stats.num_bytes, stats.num_words, distinct, scan, count).into_pyobject(py))
    }
}

/// Word counts of part of a corpus, sorted and compact.
#[pyclass(module = "bytewright._native")]
pub(crate) struct WordTable {
    /// `None` after `learn_merges` has consumed the table.
    table: Option<word_table::WordTable>,
}

impl WordTable {
    fn table(&self) -> PyResult<&word_table::WordTable> {
        self.table
            .as_ref()
            .ok_or_else(|| PyRuntimeError::new_err("this table has been consumed by learn_merges"))
    }
}

#[pymethods]
impl WordTable {
    /// Read the bytes that `WordCounter.table_bytes` or `to_bytes` returned.
    #[new]
    fn new(py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<WordTable> {
        let bytes = data.as_bytes();
        guarded(|| {
            let table = py.detach(|| word_table::WordTable::parse(bytes)).into_python()?;
            Ok(WordTable { table: Some(table) })
        })
    }

    /// The sum of two tables.
    fn merge(&self, py: Python<'_>, other: &WordTable) -> PyResult<WordTable> {
        let (left, right) = (self.table()?, other.table()?);
        guarded(|| {
            let table = py.detach(|| left.merge(right)).into_python()?;
            Ok(WordTable { table: Some(table) })
        })
    }

    /// The table as bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let table = self.table()?;
        guarded(|| Ok(PyBytes::new(py, &table.to_bytes().into_python()?)))
    }

    /// The size of `to_bytes`.
    #[getter]
    fn num_bytes(&self) -> PyResult<usize> {
        Ok(self.table()?.num_bytes())
    }

    /// Bytes, words, distinct words, thread-seconds of scanning, thread-seconds of counting.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let table = self.table()?;
        let (stats, distinct) = (table.stats(), table.num_distinct());
        let (scan, count) = (stats.scan_time.as_secs_f64(), stats.count_time.as_secs_f64());
        guarded(|| (stats.num_bytes, stats.num_words, distinct, scan, count).into_pyobject(py))
    }
}

/// The counts for `learn_merges`.
#[derive(FromPyObject)]
pub(crate) enum Words<'py> {
    Counter(PyRefMut<'py, WordCounter>),
    Table(PyRefMut<'py, WordTable>),
}

/// Learn merges from counts, which are consumed; `on_progress` is called with the number of merges done.
///
/// Returns the merges as (left symbol, right symbol, count). Symbols 0 to 255 are the bytes, followed by the
/// initial merges and the new ones.
#[pyfunction]
pub(crate) fn learn_merges<'py>(
    py: Python<'py>,
    words: Words<'py>,
    num_merges: usize,
    min_count: u64,
    initial: Items<(u32, u32)>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let options = MergeOptions { num_merges, min_count, initial: initial.0 };
    match words {
        Words::Counter(mut words) => {
            words.counter()?;
            let counts = words.counter.take().map(Counter::into_counts).unwrap_or_default();
            learn(py, counts, &options, on_progress)
        }
        Words::Table(mut words) => {
            words.table()?;
            match words.table.take() {
                Some(table) => learn(py, table, &options, on_progress),
                None => Ok(PyList::empty(py)),
            }
        }
    }
}

fn learn<'py>(
    py: Python<'py>,
    words: impl VisitWords + Send,
    options: &MergeOptions,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    guarded(|| {
        let merges = watched(py, on_progress, |report| {
            merge::learn_merges(words, options, &mut |done| report(done as u64))
        })?;
        PyList::new(py, merges.iter().map(|merge| (merge.left, merge.right, merge.count)))
    })
}

/// Run work without the GIL. Each heartbeat calls `on_progress` and checks signals: Ctrl-C or an exception in
/// `on_progress` stops the work.
fn watched<T: Send>(
    py: Python<'_>,
    on_progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut dyn FnMut(u64) -> bool) -> bpe::error::Result<T> + Send,
) -> PyResult<T> {
    let (outcome, raised) = py.detach(|| {
        let mut raised = None;
        let outcome = work(&mut |done| {
            let heard = Python::attach(|py| {
                py.check_signals()?;
                on_progress.as_ref().map_or(Ok(()), |callback| callback.call1(py, (done,)).map(drop))
            });
            raised = raised.take().or(heard.err());
            raised.is_none()
        });
        (outcome, raised)
    });
    match raised {
        Some(error) => Err(error),
        None => outcome.map_err(to_python),
    }
}
