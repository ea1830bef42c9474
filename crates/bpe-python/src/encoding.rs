//! Encoding and decoding.

use std::path::PathBuf;

use bpe::encode::{self, Id};
use bpe::error::OutOfMemory;
use bpe::pattern::Pattern;
use bpe::source::Source;
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};

use crate::errors::{IntoPython, TokenizerError, guarded, out_of_memory};
use crate::items::{Bytes, Items};
use crate::text::{Text, bytes_of};

/// Texts shorter than this are encoded without releasing the GIL, which would take longer than encoding.
const SMALL_TEXT: usize = 4096;

/// The mean number of bytes per token in natural text.
const TYPICAL_TOKEN: usize = 4;

/// Encodes and decodes with a vocabulary; the fused version of `reference.encode_reference` and
/// `reference.decode_reference`.
#[pyclass(frozen, module = "bytewright._native")]
pub(crate) struct Encoder {
    encoder: encode::Encoder,
    /// Whether all ids fit into 16 bits; then arrays have the type uint16.
    narrow: bool,
}

#[pymethods]
impl Encoder {
    #[new]
    fn new(
        py: Python<'_>,
        tokens: Items<(u32, Bytes)>,
        merges: Items<(Bytes, Bytes)>,
        special_tokens: Items<(String, u32)>,
        pattern: &str,
    ) -> PyResult<Encoder> {
        guarded(|| {
            let tokens: Vec<_> = tokens.0.into_iter().map(|(id, token)| (id, token.0)).collect();
            let merges: Vec<_> = merges.0.into_iter().map(|(left, right)| (left.0, right.0)).collect();
            let narrow = tokens.iter().all(|&(id, _)| id <= u32::from(u16::MAX));
            let pattern = Pattern::parse(pattern).into_python()?;
            let encoder = py
                .detach(|| encode::Encoder::new(&tokens, &merges, special_tokens.0, pattern))
                .into_python()?;
            Ok(Encoder { encoder, narrow })
        })
    }

    /// Encode a text to a list; all special tokens are recognised.
    fn encode<'py>(&self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let bytes = bytes_of(text)?;
        let mut ids: Vec<u32> = Vec::new();
        guarded(|| {
            detach_if_long(py, bytes, || self.encoder.encode(bytes, &mut ids)).into_python()?;
            PyList::new(py, ids)
        })
    }

    /// Encode a text to a list; only `allowed` special tokens are recognised, and `disallowed` ones are an error.
    fn encode_selected<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
        allowed: Items<String>,
        disallowed: Items<String>,
    ) -> PyResult<Bound<'py, PyList>> {
        let bytes = bytes_of(text)?;
        let mut ids: Vec<u32> = Vec::new();
        guarded(|| {
            py.detach(|| self.encoder.encode_selected(bytes, &allowed.0, &disallowed.0, &mut ids))
                .into_python()?;
            PyList::new(py, ids)
        })
    }

    /// Encode a text to an array, on several threads if it is long.
    fn encode_array<'py>(
        &self,
        py: Python<'py>,
        text: &Bound<'py, PyAny>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.bytes_to_array(py, bytes_of(text)?, 0, num_threads)
    }

    /// Encode many texts to arrays, on several threads.
    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        texts: Items<Text<'py>>,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(texts.0.len()).map_err(out_of_memory)?;
        for text in &texts.0 {
            bytes.push(bytes_of(&text.0)?);
        }
        guarded(|| {
            if self.narrow {
                self.to_arrays::<u16>(py, &bytes, num_threads)
            } else {
                self.to_arrays::<u32>(py, &bytes, num_threads)
            }
        })
    }

    /// The bytes of a sequence of ids.
    fn decode<'py>(&self, py: Python<'py>, ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        guarded(|| {
            let bytes = if let Ok(ids) = ids.extract::<PyReadonlyArray1<'_, u16>>() {
                self.decode_array(py, ids)?
            } else if let Ok(ids) = ids.extract::<PyReadonlyArray1<'_, u32>>() {
                self.decode_array(py, ids)?
            } else {
                let mut bytes = Vec::new();
                for (position, id) in ids.try_iter()?.enumerate() {
                    let id = id?;
                    let token = id.extract::<u32>().ok().and_then(|id| self.encoder.tokens().get(id));
                    let token = token.ok_or_else(|| unknown_id(&id, position))?;
                    bytes.try_reserve(token.len()).map_err(out_of_memory)?;
                    bytes.extend_from_slice(token);
                }
                bytes
            };
            Ok(PyBytes::new(py, &bytes))
        })
    }
}

impl Encoder {
    /// Decode a copy of an array: without the GIL, another thread may write to the array.
    fn decode_array<I: Id + Element + Into<u32>>(
        &self,
        py: Python<'_>,
        ids: PyReadonlyArray1<'_, I>,
    ) -> PyResult<Vec<u8>> {
        let mut copy: Vec<I> = Vec::new();
        copy.try_reserve_exact(ids.len()?).map_err(out_of_memory)?;
        copy.extend(ids.as_array());
        let mut bytes = Vec::new();
        bytes.try_reserve(TYPICAL_TOKEN * copy.len()).map_err(out_of_memory)?;
        py.detach(|| self.encoder.tokens().decode(copy.iter().map(|&id| id.into()), &mut bytes))
            .into_python()?;
        Ok(bytes)
    }

    /// Encode a text that begins at byte `start` of a file.
    fn bytes_to_array<'py>(
        &self,
        py: Python<'py>,
        text: &[u8],
        start: usize,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            if self.narrow {
                self.to_array::<u16>(py, text, start, num_threads)
            } else {
                self.to_array::<u32>(py, text, start, num_threads)
            }
        })
    }

    fn to_array<'py, I: Id + Element>(
        &self,
        py: Python<'py>,
        text: &[u8],
        start: usize,
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ids = py.detach(|| self.encoder.encode_parallel::<I>(text, num_threads));
        let ids = ids.map_err(|error| error.after(start)).into_python()?;
        Ok(PyArray1::from_vec(py, ids).into_any())
    }

    fn to_arrays<'py, I: Id + Element>(
        &self,
        py: Python<'py>,
        texts: &[&[u8]],
        num_threads: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let batch = py.detach(|| self.encoder.encode_batch::<I>(texts, num_threads)).into_python()?;
        let blocks: Vec<_> = batch.blocks.into_iter().map(|ids| PyArray1::from_vec(py, ids)).collect();
        let arrays = PyList::empty(py);
        for (block, range) in batch.places {
            let slice = PySlice::new(py, range.start as isize, range.end as isize, 1);
            arrays.append(blocks[block].get_item(slice)?)?;
        }
        Ok(arrays)
    }
}

/// Call a function with a text, without the GIL unless the text is small.
#[inline]
fn detach_if_long<T: Send>(py: Python<'_>, text: &[u8], work: impl FnOnce() -> T + Send) -> T {
    if text.len() < SMALL_TEXT { work() } else { py.detach(work) }
}

/// The error for an object that is not an id. It may be any object, even an integer that Python cannot print.
#[cold]
fn unknown_id(id: &Bound<'_, PyAny>, position: usize) -> PyErr {
    const LONGEST: usize = 42;
    let shown = id
        .str()
        .map_or_else(|_| "(too long to show)".into(), |shown| shown.to_string_lossy().replace('\n', " "));
    let shown = match shown.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &shown[..end]),
        None => shown,
    };
    TokenizerError::new_err(format!("token id {shown} at position {position} is outside the vocabulary"))
}

/// Encodes a text that arrives in pieces.
#[pyclass(module = "bytewright._native")]
pub(crate) struct StreamEncoder {
    encoder: Py<Encoder>,
    stream: encode::Stream,
    /// Ids that were not returned to Python yet, because there was no memory for a list.
    ids: Vec<u32>,
}

#[pymethods]
impl StreamEncoder {
    #[new]
    fn new(encoder: Py<Encoder>) -> StreamEncoder {
        StreamEncoder { encoder, stream: encode::Stream::new(), ids: Vec::new() }
    }

    /// Add text; return the ids that are certain now.
    fn feed<'py>(&mut self, py: Python<'py>, text: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let bytes = bytes_of(text)?;
        let StreamEncoder { encoder, stream, ids } = self;
        let encoder = &encoder.get().encoder;
        guarded(|| {
            detach_if_long(py, bytes, || stream.feed(encoder, bytes, ids)).into_python()?;
            PyList::new(py, &*ids).inspect(|_| ids.clear())
        })
    }

    /// End the text; return the remaining ids.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let StreamEncoder { encoder, stream, ids } = self;
        let encoder = &encoder.get().encoder;
        guarded(|| {
            py.detach(|| stream.finish(encoder, ids)).into_python()?; // the rest may be a long word
            PyList::new(py, &*ids).inspect(|_| ids.clear())
        })
    }
}

/// Encodes a file in pieces; several threads may use it at the same time.
#[pyclass(frozen, module = "bytewright._native")]
pub(crate) struct FileEncoder {
    encoder: Py<Encoder>,
    source: Source,
}

#[pymethods]
impl FileEncoder {
    #[new]
    fn new(py: Python<'_>, encoder: Py<Encoder>, path: PathBuf) -> PyResult<FileEncoder> {
        guarded(|| {
            let source = py.detach(|| Source::open(&path)).into_python()?; // opening a pipe can block
            Ok(FileEncoder { encoder, source })
        })
    }

    /// The size of the file in bytes.
    #[getter]
    fn num_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.source.len().into_bound_py_any(py))
    }

    /// The end of a piece that begins at `start` and has at least `num_bytes`.
    fn next_cut<'py>(&self, py: Python<'py>, start: usize, num_bytes: usize) -> PyResult<Bound<'py, PyAny>> {
        let start = start.min(self.source.len());
        let encoder = &self.encoder.get().encoder;
        guarded(|| {
            let len = py.detach(|| encoder.next_cut(&self.source[start..], num_bytes)); // the search can be long
            (start + len).into_bound_py_any(py)
        })
    }

    /// The ids of a piece as an array.
    fn encode<'py>(&self, py: Python<'py>, start: usize, end: usize) -> PyResult<Bound<'py, PyAny>> {
        self.encoder.get().bytes_to_array(py, self.source.get(start..end).unwrap_or_default(), start, 1)
    }
}

/// Split a text into pre-tokens; the fused version of `reference.pretokenize`.
#[pyfunction]
pub(crate) fn pretokenize<'py>(
    py: Python<'py>,
    text: &Bound<'py, PyAny>,
    pattern: &str,
) -> PyResult<Bound<'py, PyList>> {
    let bytes = bytes_of(text)?;
    guarded(|| {
        let words = PyList::empty(py);
        let mut start = 0;
        let pattern = Pattern::parse(pattern).into_python()?;
        pattern
            .scan(bytes, |base, ends| {
                for &end in ends {
                    let end = base + end as usize;
                    words.append(PyBytes::new(py, &bytes[start..end])).map_err(|_| OutOfMemory)?;
                    start = end;
                }
                Ok(())
            })
            .into_python()?;
        Ok(words)
    })
}
