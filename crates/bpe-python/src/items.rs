//! Lists and byte strings from Python, whatever they really are.
//!
//! What an object says of its own length is not believed: PyO3's `Vec` asks for that much memory at once, and
//! for `range(2**60)`, or a class with a wrong `__len__`, that ends in a panic or in the end of the process.

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::out_of_memory;

/// Several things, taken one by one from anything that can be iterated over, except from a text.
pub(crate) struct Items<T>(pub(crate) Vec<T>);

impl<'a, 'py, T: FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Items<T>> {
        if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            let found = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("expected a list, found one {found}")));
        }
        let mut items = Vec::new();
        for item in object.try_iter()? {
            let item = item?.extract().map_err(Into::into)?;
            items.try_reserve(1).map_err(out_of_memory)?;
            items.push(item);
        }
        Ok(Items(items))
    }
}

/// The bytes of a `bytes`, and of nothing else.
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Bytes> {
        let object = object.cast::<PyBytes>()?;
        let found = object.as_bytes();
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(found.len()).map_err(out_of_memory)?;
        bytes.extend_from_slice(found);
        Ok(Bytes(bytes))
    }
}
