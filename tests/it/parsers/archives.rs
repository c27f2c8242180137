//! Archives of sessions, as an import reads them: whole ones, and manifests in one that is right otherwise.

use belljar::protocol::branch::{ARCHIVE_MANIFEST, ArchiveManifest};
use belljar::protocol::event::Event;
use belljar::protocol::problem::{Code, Problem};
use belljar::sandbox::workspace::session_archive::{self, Member};
use sha2::{Digest as _, Sha256};
use std::io::Read as _;

use super::dice::TAR_BLOCK;

const DIGEST: &str = "digest";

fn members(input: &[u8]) -> Result<(ArchiveManifest, usize), Problem> {
    let (mut members, mut bytes) = (0, 0);
    let manifest = session_archive::read(input, &mut |_| Ok(()), |member, data| {
        let mut content = Vec::new();
        let read = data.take(input.len() as u64 + 1).read_to_end(&mut content);
        read.map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
        members += 1;
        bytes += content.len();
        match member {
            Member::Events => {
                content
                    .split(|byte| *byte == b'\n')
                    .for_each(|line| drop(serde_json::from_slice::<Event>(line)));
            }
            Member::Piece { section } => assert!(section as usize <= members, "{section}"),
            Member::Workspace(path, _) => {
                assert!(path.is_relative() && !path.to_string_lossy().contains('\0'), "{path:?}");
            }
        }
        Ok(())
    });
    assert!(bytes <= input.len(), "{bytes} bytes came out of {}", input.len());
    manifest.map(|manifest| (manifest, members))
}

/// Reads an archive. One that is whole has the same members when it is read again.
pub fn read(input: &[u8]) {
    if let Ok((_, first)) = members(input) {
        let mut again = 0;
        let outcome = session_archive::read_again(input, |_, _| {
            again += 1;
            Ok(())
        });
        assert!(outcome.is_ok() && again == first, "{again} members and not {first}: {outcome:?}");
    }
}

/// Reads a manifest in an archive that has nothing else. One that is taken is taken again as it was written.
pub fn read_manifest(input: &[u8]) {
    if let Ok((manifest, _)) = members(&with_manifest(input)) {
        let again = serde_json::to_vec(&manifest).expect("a manifest that was read can be written");
        let outcome = members(&with_manifest(&again));
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

fn with_manifest(manifest: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    append(&mut builder, ARCHIVE_MANIFEST, manifest);
    let digest = digest_of(builder.get_ref());
    append(&mut builder, DIGEST, digest.as_bytes());
    builder.into_inner().expect("memory")
}

fn append(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, name, content).expect("memory");
}

fn digest_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Makes the digest of an archive right, so that changes of its members get past it.
pub fn mend_digest(stream: &mut [u8]) {
    let headers = (0..stream.len() / TAR_BLOCK).map(|block| block * TAR_BLOCK);
    let name = [DIGEST.as_bytes(), b"\0"].concat();
    let Some(at) = headers.rev().find(|at| stream[*at..].starts_with(&name)) else { return };
    let digest = digest_of(&stream[..at]);
    if let Some(said) = stream.get_mut(at + TAR_BLOCK..at + TAR_BLOCK + digest.len()) {
        said.copy_from_slice(digest.as_bytes());
    }
}

/// Inputs that are refused at once would try nothing out.
#[test]
fn the_inputs_are_archives_that_can_be_imported() {
    let input = |path: &str| {
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
        std::fs::read(top.join(path)).expect("an input")
    };
    let (manifest, count) = members(&input("archives/whole")).expect("it can be imported");
    assert_eq!((manifest.session.to_string().as_str(), count), ("lab", 7));
    assert!(manifest.snapshot.is_some_and(|snapshot| snapshot.manifest.sections == 2));
    let mut changed = input("archives/whole");
    changed[..TAR_BLOCK].reverse();
    assert!(members(&changed).is_err());
    members(&with_manifest(&input("manifests/variables"))).expect("it can be imported");
    members(&with_manifest(&input("manifests/cells"))).expect("it can be imported");
}
