//! The archive of a session: a tar stream by which it moves to another machine, or to another user.
//!
//! `manifest.json` comes first; then `events/N.jsonl`, the journal in pieces; `snapshot/SECTION/PIECE`, the variables as the
//! kernel packed them; `workspace/…`, the files; last `digest`, the SHA-256 of every byte before it. A stream that breaks off
//! has no digest, and is refused as one that was changed. The digest guards against damage: who writes an archive can
//! write its digest, too, so nothing in it is trusted.
//!
//! Reading goes through the bounded reader of tar streams ([`archive`]), which knows files and folders only. Members come
//! in the order above, and are numbered without gaps.

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::protocol::branch::{
    ARCHIVE_FORMAT, ARCHIVE_MAKER, ARCHIVE_MANIFEST, ArchiveManifest, OLDEST_ARCHIVE_FORMAT,
};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::snapshot::RECORD_BYTES;
use crate::protocol::text::quotable;
use crate::protocol::values::parsed_bytes;
use crate::sandbox::workspace::archive::{self, Facts, Kind};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::upload_room::UploadRoom;
use crate::sandbox::workspace::{files, usage};
use crate::security_controls;

const DIGEST: &str = "digest";
/// What to do about an archive that is damaged.
pub const EXPORT_AGAIN: &str = "copy the file again from where it was exported, or export the session again";
const EVENTS: &str = "events";
const SNAPSHOT: &str = "snapshot";
const WORKSPACE: &str = "workspace";
/// Bytes of a manifest.
pub const MANIFEST_BYTES: u64 = 1024 * 1024;
/// Bytes of one piece of the journal.
pub const EVENTS_BYTES: u64 = 64 * 1024 * 1024;
/// Pieces of a snapshot, and sections of it.
const PIECES: usize = 1_000_000;
/// Pieces of the journal.
const EVENT_PIECES: usize = 100_000;
/// All members of an archive.
const MEMBERS: usize = PIECES + EVENT_PIECES + usage::ENTRIES + 2;
/// The least that a reader of `tar` takes at once, and the size of the header of `digest`.
const HEADER: usize = 512;

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// Lines of JSON, one for each event.
    Events,
    /// A piece of a section of the snapshot, at most [`RECORD_BYTES`].
    Piece { section: u32 },
    /// A file or a folder of the workspace.
    Workspace(PathBuf, Facts),
}

/// Writes an archive. Without [`ArchiveWriter::finish`] it has no digest, so that it is refused.
pub struct ArchiveWriter<W: Write> {
    builder: tar::Builder<Digesting<W>>,
    events: u32,
    /// The section and the number of the next piece.
    next: (u32, u32),
}

impl<W: Write> ArchiveWriter<W> {
    pub fn begin(out: W, manifest: &ArchiveManifest) -> io::Result<Self> {
        let builder = tar::Builder::new(Digesting { out, hash: Sha256::new() });
        let mut writer = Self { builder, events: 0, next: (0, 0) };
        writer.member(ARCHIVE_MANIFEST, &serde_json::to_vec_pretty(manifest)?)?;
        Ok(writer)
    }

    /// Appends lines of events.
    pub fn events(&mut self, lines: &[u8]) -> io::Result<()> {
        let name = format!("{EVENTS}/{:06}.jsonl", self.events);
        self.events += 1;
        self.member(&name, lines)
    }

    /// Appends a piece of the current section of the snapshot.
    pub fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(RECORD_BYTES) {
            let (section, number) = self.next;
            self.next.1 += 1;
            self.member(&format!("{SNAPSHOT}/{section:06}/{number:06}"), piece)?;
        }
        Ok(())
    }

    /// Ends a section of the snapshot. One without bytes has a piece nevertheless, so that it is seen.
    pub fn end_section(&mut self) -> io::Result<()> {
        if let (section, 0) = self.next {
            self.member(&format!("{SNAPSHOT}/{section:06}/000000"), &[])?;
        }
        self.next = (self.next.0 + 1, 0);
        Ok(())
    }

    /// Appends the workspace. Returns how many entries were left out: links, pipes and the like.
    pub fn workspace(&mut self, root: &Root<'_>) -> io::Result<usize> {
        files::append_tree(root, Path::new(WORKSPACE), &mut self.builder)
    }

    /// Appends the digest and the end mark.
    pub fn finish(mut self) -> io::Result<W> {
        let digest = hex::encode(self.builder.get_ref().hash.clone().finalize());
        self.member(DIGEST, digest.as_bytes())?;
        Ok(self.builder.into_inner()?.out)
    }

    fn member(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        self.builder.append_data(&mut header, name, bytes)
    }
}

/// Computes the digest of all that is written.
struct Digesting<W> {
    out: W,
    hash: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The digest of all that was read but for the last [`HEADER`] bytes: when a member is reached, those are its header.
#[derive(Default)]
struct Lagging {
    hash: Sha256,
    last: Vec<u8>,
}

impl Lagging {
    fn update(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(bytes);
        let settled = self.last.len().saturating_sub(HEADER);
        self.hash.update(self.last.get(..settled).unwrap_or_default());
        self.last.drain(..settled);
    }
}

struct DigestingReader<R> {
    input: R,
    lagging: Rc<RefCell<Lagging>>,
}

impl<R: Read> Read for DigestingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.lagging.borrow_mut().update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// What has been read so far.
#[derive(Default)]
struct Progress {
    has_manifest: bool,
    events: usize,
    /// The section and the number of the last piece.
    last_piece: Option<(u32, u32)>,
    pieces: usize,
    snapshot_bytes: u64,
    has_files: bool,
    is_whole: bool,
}

/// Takes so many bytes of the user's memory, or refuses them. What is charged stays so as long as the caller wants.
pub type ChargeMemory<'a> = &'a mut dyn FnMut(u64) -> Result<(), Problem>;

/// Reads an archive, and calls `take` with each member between the manifest and the digest. An archive is whole if this
/// succeeds; until then nothing of it may be used. The manifest is charged before it is in memory; what `take` keeps is up to
/// its caller.
pub fn read(
    input: impl Read,
    charge: ChargeMemory<'_>,
    take: impl FnMut(Member, &mut dyn Read) -> Result<(), Problem>,
) -> Result<ArchiveManifest, Problem> {
    let mut manifest = None;
    let of_manifest = |data: &mut dyn Read| {
        manifest = Some(parse_manifest(data, charge)?);
        Ok(())
    };
    let progress = each_member(input, of_manifest, take)?;
    progress.agrees_with(manifest.ok_or_else(|| bad("it breaks off"))?)
}

/// Reads an archive again that was found to be whole. Its manifest is not parsed.
pub fn read_again(
    input: impl Read,
    take: impl FnMut(Member, &mut dyn Read) -> Result<(), Problem>,
) -> Result<(), Problem> {
    each_member(input, |_| Ok(()), take).map(drop)
}

fn each_member(
    input: impl Read,
    mut of_manifest: impl FnMut(&mut dyn Read) -> Result<(), Problem>,
    mut take: impl FnMut(Member, &mut dyn Read) -> Result<(), Problem>,
) -> Result<Progress, Problem> {
    let lagging = Rc::new(RefCell::new(Lagging::default()));
    let input = DigestingReader { input, lagging: Rc::clone(&lagging) };
    let mut progress = Progress::default();
    let read = archive::each_member(input, MEMBERS, |path, facts, data| {
        if progress.is_whole {
            return Err(bad("something follows its digest"));
        }
        if !progress.has_manifest {
            if path != Path::new(ARCHIVE_MANIFEST) || facts.kind != Kind::File {
                return Err(no_archive());
            }
            progress.has_manifest = true;
            return of_manifest(data);
        }
        if path == Path::new(DIGEST) && facts.kind == Kind::File {
            let found = hex::encode(lagging.borrow().hash.clone().finalize());
            let said = bounded(data, HEADER as u64)?;
            if said != found.as_bytes() && security_controls::holds("archives_are_verified") {
                return Err(bad("its digest is another one: it is damaged, or was changed"));
            }
            progress.is_whole = true;
            return Ok(());
        }
        let member = progress.member(&path, facts)?;
        let most = match member {
            Member::Events => EVENTS_BYTES,
            Member::Piece { .. } => RECORD_BYTES as u64,
            Member::Workspace(..) => u64::MAX,
        };
        let mut data = Bounded { data, left: most, taken: 0 };
        let is_piece = matches!(member, Member::Piece { .. });
        take(member, &mut data)?;
        // What `take` leaves is counted, too.
        io::copy(&mut data, &mut io::sink()).map_err(archive::broken)?;
        if is_piece {
            progress.snapshot_bytes = progress.snapshot_bytes.saturating_add(data.taken);
        }
        Ok(())
    });
    match read {
        // Whatever else the reader says of these bytes.
        Ok(()) | Err(Problem { code: Code::BadRequest | Code::TooLarge, .. }) if !progress.has_manifest => {
            return Err(no_archive());
        }
        read => read.map_err(with_hint)?,
    }
    if progress.is_whole { Ok(progress) } else { Err(bad("it breaks off")) }
}

impl Progress {
    /// Checks that a member may come now.
    fn member(&mut self, path: &Path, facts: Facts) -> Result<Member, Problem> {
        let out_of_order = || {
            let path = quotable(&path.to_string_lossy());
            bad(&format!("`{path}` is none of its members, or not in its place"))
        };
        let parts: Vec<&str> =
            path.components().filter_map(|part| part.as_os_str().to_str()).take(4).collect();
        if let Ok(inside) = path.strip_prefix(WORKSPACE) {
            self.has_files = true;
            return Ok(Member::Workspace(inside.to_owned(), facts));
        }
        if facts.kind != Kind::File || self.has_files {
            return Err(out_of_order());
        }
        match parts[..] {
            [EVENTS, file] if self.last_piece.is_none() => {
                if file != format!("{:06}.jsonl", self.events) || self.events == EVENT_PIECES {
                    return Err(out_of_order());
                }
                self.events += 1;
                Ok(Member::Events)
            }
            [SNAPSHOT, section, piece] => {
                let number = |text: &str| text.parse::<u32>().map_err(|_| out_of_order());
                let here = (number(section)?, number(piece)?);
                let follows = match self.last_piece {
                    None => here == (0, 0),
                    Some((section, piece)) => here == (section, piece + 1) || here == (section + 1, 0),
                };
                self.pieces += 1;
                if !follows || self.pieces > PIECES {
                    return Err(out_of_order());
                }
                self.last_piece = Some(here);
                Ok(Member::Piece { section: here.0 })
            }
            _ => Err(out_of_order()),
        }
    }

    fn agrees_with(self, manifest: ArchiveManifest) -> Result<ArchiveManifest, Problem> {
        let (sections, bytes) = manifest
            .snapshot
            .as_ref()
            .map_or((0, 0), |snapshot| (snapshot.manifest.sections, snapshot.manifest.bytes));
        let found = self.last_piece.map_or(0, |(section, _)| section + 1);
        if (found, self.snapshot_bytes) != (sections, bytes) {
            return Err(bad(&format!(
                "it has {found} sections and {} bytes of variables, and its manifest says {sections} and {bytes}",
                self.snapshot_bytes
            )));
        }
        Ok(manifest)
    }
}

/// Makes the files and folders of an archive that was found to be whole, which `open` reads from its beginning, with the
/// rights and times that it says.
pub fn unpack<R: Read>(
    open: impl Fn() -> R,
    root: &Root<'_>,
    upload_room: &UploadRoom,
) -> Result<(), Problem> {
    let mut has_folders = false;
    each_of_workspace(open(), |path, facts, data| {
        has_folders |= facts.kind == Kind::Folder;
        files::unpack(root, Path::new(""), (path, facts), data, upload_room)
    })?;
    if !has_folders {
        return Ok(());
    }
    // What is made in a folder changes its time, and may need rights that the folder shall not have. The archive is read
    // again for it, because the paths of all folders together could take any amount of memory.
    each_of_workspace(open(), |path, facts, _| match facts.kind {
        Kind::Folder => files::give_attributes(root, path, &facts.attributes),
        Kind::File => Ok(()),
    })
}

fn each_of_workspace(
    input: impl Read,
    mut take: impl FnMut(&Path, Facts, &mut dyn Read) -> Result<(), Problem>,
) -> Result<(), Problem> {
    read_again(input, |member, data| match member {
        // The workspace itself is made before.
        Member::Workspace(path, facts) if path != Path::new("") => take(&path, facts, data),
        Member::Workspace(..) | Member::Events | Member::Piece { .. } => Ok(()),
    })
}

/// The part of a manifest that says how to read the rest.
#[derive(Deserialize)]
struct Format {
    format: Option<u64>,
}

fn parse_manifest(data: &mut dyn Read, charge: ChargeMemory<'_>) -> Result<ArchiveManifest, Problem> {
    // The text has at most twice its size while it grows.
    charge(2 * MANIFEST_BYTES)?;
    let bytes = bounded(data, MANIFEST_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| bad("its manifest is no text"))?;
    // A list of small values takes many times as much memory as its text.
    charge(parsed_bytes(text))?;
    let Format { format } =
        serde_json::from_str(text).map_err(|error| bad(&format!("its manifest is no JSON: {error}")))?;
    let known = u64::from(OLDEST_ARCHIVE_FORMAT)..=u64::from(ARCHIVE_FORMAT);
    if !format.is_some_and(|format| known.contains(&format)) {
        let found = format.map_or_else(|| "none".to_owned(), |format| format.to_string());
        let what = format!(
            "this version of Belljar reads the formats {OLDEST_ARCHIVE_FORMAT} to {ARCHIVE_FORMAT}, and it has {found}"
        );
        return Err(bad(&what).hint("export the session again, with the version of Belljar that imports it"));
    }
    let mut manifest: ArchiveManifest = serde_json::from_str(text)
        .map_err(|error| bad(&format!("its manifest is not what it should be: {error}")))?;
    if !manifest.rules.are_possible() {
        return Err(bad("its rules name too many tools, or too long ones"));
    }
    if let Some(snapshot) = &mut manifest.snapshot {
        snapshot.manifest.bound();
    }
    Ok(manifest)
}

fn bad(what: &str) -> Problem {
    Problem::new(Code::BadRequest, format!("the archive cannot be used: {what}")).hint(EXPORT_AGAIN)
}

/// The bytes do not begin as those of an archive do.
fn no_archive() -> Problem {
    Problem::new(Code::BadRequest, "this is no Belljar archive").hint(ARCHIVE_MAKER)
}

/// Says what to do about damaged bytes. What takes its members says that itself.
fn with_hint(problem: Problem) -> Problem {
    if problem.code == Code::BadRequest && problem.hint.is_none() {
        problem.hint(EXPORT_AGAIN)
    } else {
        problem
    }
}

/// The content of a member, if it is not larger than `most`.
fn bounded(data: &mut dyn Read, most: u64) -> Result<Vec<u8>, Problem> {
    let mut content = Vec::new();
    Bounded { data, left: most, taken: 0 }.read_to_end(&mut content).map_err(archive::broken)?;
    Ok(content)
}

/// A member that may not be larger than `left`.
struct Bounded<'a> {
    data: &'a mut dyn Read,
    left: u64,
    taken: u64,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.data.read(buffer)?;
        let Some(left) = self.left.checked_sub(count as u64) else {
            return Err(io::Error::other("a member is larger than it may be"));
        };
        self.left = left;
        self.taken += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
