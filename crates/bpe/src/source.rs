//! The bytes of a file, without reading it into memory if possible.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::lowlevel;

/// The bytes of a file: mapped if possible, else read (pipes, for example).
pub enum Source {
    /// A memory map.
    Mapped(Mmap),
    /// A copy.
    Read(Vec<u8>),
}

impl Source {
    /// Open a file.
    pub fn open(path: &Path) -> Result<Source> {
        let fail = |source: io::Error| Error::of_file(path, source);
        let mut file = File::open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        if metadata.is_file() && metadata.len() > 0 {
            return lowlevel::map_file(&file).map(Source::Mapped).map_err(fail);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        Ok(Source::Read(bytes))
    }
}

impl std::ops::Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map,
            Source::Read(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_mapped_and_unreadable_files_are_named() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("bpe-source-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (full, empty) = (folder.join("full"), folder.join("empty"));
        std::fs::write(&full, "text")?;
        std::fs::write(&empty, "")?;
        assert!(
            Source::open(&full)
                .is_ok_and(|source| matches!(source, Source::Mapped(_)) && *source == *b"text")
        );
        assert!(Source::open(&empty).is_ok_and(|source| source.is_empty()));
        for path in [folder.join("missing"), folder.clone()] {
            let outcome = Source::open(&path).map(|_| ());
            assert!(outcome.is_err_and(|error| error.to_string().contains(&path.display().to_string())));
        }
        std::fs::remove_dir_all(&folder)
    }
}
