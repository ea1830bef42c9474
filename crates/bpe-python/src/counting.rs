//! Counting words and learning merges.

use std::path::PathBuf;

use bpe::count::Counter;
use bpe::merge::{self, MergeOptions};
use bpe::pattern::Pattern;
use bpe::special::Specials;
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

/// Learn merges from counts, which are consumed; `on_progress` is called with the number of merges done.
///
/// Returns the merges as (left symbol, right symbol, count). Symbols 0 to 255 are the bytes, followed by the
/// initial merges and the new ones.
#[pyfunction]
pub(crate) fn learn_merges<'py>(
    py: Python<'py>,
    words: &mut WordCounter,
    num_merges: usize,
    min_count: u64,
    initial: Items<(u32, u32)>,
    on_progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    words.counter()?;
    let counts = words.counter.take().map(Counter::into_counts).unwrap_or_default();
    let options = MergeOptions { num_merges, min_count, initial: initial.0 };
    guarded(|| {
        let merges = watched(py, on_progress, |report| {
            merge::learn_merges(counts, &options, &mut |done| report(done as u64))
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
