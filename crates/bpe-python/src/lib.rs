//! The Python binding of the crates `bpe` and `worldbook`: converts types and errors, and releases the GIL.
//!
//! Every error becomes one of `bytewright.errors` or `MemoryError`, and no input causes a panic. PyO3 panics when Python
//! has no memory for an object. `errors::guarded` turns that panic into `MemoryError`, and any other into `RuntimeError`.

mod counting;
mod encoding;
mod errors;
mod items;
mod text;
mod worldbook;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: bpe::Allocator = bpe::Allocator;

/// The native core of Bytewright: the fused versions of `tokenizer.reference` and of the world book's generator.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::counting::WordCounter;
    #[pymodule_export]
    use super::counting::WordTable;
    #[pymodule_export]
    use super::counting::learn_merges;
    #[pymodule_export]
    use super::encoding::Encoder;
    #[pymodule_export]
    use super::encoding::FileEncoder;
    #[pymodule_export]
    use super::encoding::StreamEncoder;
    #[pymodule_export]
    use super::encoding::pretokenize;
    #[pymodule_export]
    use super::worldbook::WorldbookWriter;

    /// Return (highest CPUID leaf, EDX of leaf 7, XCR0, palette): see `bpe::AmxReport`. None if not x86-64.
    #[pyfunction]
    fn read_amx() -> Option<(u32, u32, u64, u32)> {
        bpe::read_amx().map(|report| (report.max_leaf, report.features, report.xcr0, report.palette))
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        errors::report_panics_briefly();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
