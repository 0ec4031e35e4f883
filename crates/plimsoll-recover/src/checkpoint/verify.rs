//! Whether what lies in a checkpoint's folder is what was saved.

use std::io::Read;
use std::path::Path;

use crc32fast::Hasher;
use plimsoll_machine::Bytes;

use super::Manifest;
use super::manifest::open_of_length;
use crate::RecoverError;

/// Reads the whole checkpoint `path` through one small buffer and holds it against its manifest.
pub fn verify(path: &Path) -> Result<Manifest, RecoverError> {
    let manifest = inspect(path)?;
    let mut buffer = vec![0; Bytes::kib(256).0 as usize];
    for (name, expected) in &manifest.files {
        let mut file = manifest.open_file(name)?;
        let mut crc = Hasher::new();
        let mut bytes = Bytes::ZERO;
        loop {
            let got = file.read(&mut buffer)?;
            if got == 0 {
                break;
            }
            crc.update(&buffer[..got]);
            bytes += Bytes(got as u64);
        }
        let path = manifest.path().join(name);
        if bytes != expected.bytes {
            return Err(RecoverError::FileLength { path, expected: expected.bytes, found: bytes });
        }
        let found = crc.finalize();
        if found != expected.crc32 {
            return Err(RecoverError::FileChecksum { path, expected: expected.crc32, found });
        }
    }
    Ok(manifest)
}

/// The quick look: the manifest, and the length of every file, but no content.
pub(super) fn inspect(path: &Path) -> Result<Manifest, RecoverError> {
    let manifest = Manifest::read(path)?;
    for (name, expected) in &manifest.files {
        open_of_length(&path.join(name), expected.bytes)?;
    }
    Ok(manifest)
}
