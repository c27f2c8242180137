//! Tar streams from clients. A member's long name and its other extensions are entries of their own, whose size the
//! sender chooses. So they are read here, up to a bound, and never by the library, which would read them whole. A
//! stream is parsed only here, so that no bytes can be data to one parser and an entry to another.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;
use crate::sandbox::workspace::attributes::Attributes;
use crate::security_controls;

/// The longest path of a member, which is the kernel's limit for a path.
pub const MEMBER_PATH_BYTES: u64 = 4096;
/// The largest other extension: times, owners and attributes of one member.
pub const EXTENSION_BYTES: u64 = 64 * 1024;
/// Maximum number of extensions for the whole stream.
const GLOBAL_EXTENSIONS: usize = 16;

/// The kinds of members that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
}

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: Kind,
    pub attributes: Attributes,
}

/// The extension entries before a member.
#[derive(Default)]
struct Extensions {
    long_name: Option<Vec<u8>>,
    long_link: bool,
    pax: Option<Pax>,
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.long_name.is_none() && !self.long_link && self.pax.is_none()
    }
}

/// The fields of a PAX extension that are used.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pax {
    path: Option<Vec<u8>>,
    bytes: Option<u64>,
}

/// Calls `take` with the path, the facts and the content of each member, one after the other. A member that is neither a
/// regular file nor a folder, or one more than `most`, is refused when it is reached.
pub fn each_member(
    input: impl Read,
    most: usize,
    mut take: impl FnMut(PathBuf, Facts, &mut dyn Read) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut archive = tar::Archive::new(input);
    let (mut before, mut members, mut global) = (Extensions::default(), 0_usize, 0_usize);
    for entry in archive.entries().map_err(broken)?.raw(security_controls::holds("tar_extension_bound")) {
        let mut entry = entry.map_err(broken)?;
        let (kind, bytes) = (entry.header().entry_type(), entry.size());
        match kind {
            tar::EntryType::GNULongName if before.long_name.is_none() => {
                // A zero byte marks the end of the name.
                let mut name = whole(&mut entry, bytes, MEMBER_PATH_BYTES + 1)?;
                if name.last() == Some(&0) {
                    name.pop();
                }
                before.long_name = Some(name);
            }
            tar::EntryType::GNULongLink if !before.long_link => {
                // This is the target of a link, and the link itself is refused when it is reached.
                whole(&mut entry, bytes, MEMBER_PATH_BYTES + 1)?;
                before.long_link = true;
            }
            tar::EntryType::XHeader if before.pax.is_none() => {
                before.pax = Some(parse_pax(&whole(&mut entry, bytes, EXTENSION_BYTES)?)?);
            }
            tar::EntryType::XGlobalHeader if global < GLOBAL_EXTENSIONS => {
                whole(&mut entry, bytes, EXTENSION_BYTES)?;
                global += 1;
            }
            tar::EntryType::GNULongName
            | tar::EntryType::GNULongLink
            | tar::EntryType::XHeader
            | tar::EntryType::XGlobalHeader => {
                return Err(bad("the tar stream has several extensions for one member"));
            }
            _ => {
                members += 1;
                if members > most {
                    return Err(Problem::new(
                        Code::TooLarge,
                        format!("a tar stream may have {most} files and folders here at most"),
                    )
                    .hint("send fewer of them"));
                }
                let path = path_of(std::mem::take(&mut before), &entry, bytes)?;
                let printable_path = || quotable(&path.to_string_lossy());
                if path.is_absolute() {
                    return Err(bad(&format!("the tar entry `{}` is absolute", printable_path())));
                }
                let kind = match kind {
                    tar::EntryType::Directory if bytes == 0 => Kind::Folder,
                    tar::EntryType::Regular => Kind::File,
                    _ => {
                        let what = format!(
                            "the tar entry `{}` is neither a regular file nor a folder",
                            printable_path()
                        );
                        return Err(bad(&what).hint("leave links and special files out"));
                    }
                };
                let attributes = Attributes::of(entry.header());
                take(path, Facts { kind, attributes }, &mut entry)?;
            }
        }
    }
    if before.is_empty() {
        Ok(())
    } else {
        Err(bad("the tar stream ends before the member that it announced"))
    }
}

pub(super) fn broken(error: std::io::Error) -> Problem {
    bad(&format!("the tar stream cannot be read: {error}"))
}

fn bad(what: &str) -> Problem {
    Problem::new(Code::BadRequest, what)
}

/// The content of an extension, if it is not larger than `most`.
fn whole(entry: &mut impl Read, bytes: u64, most: u64) -> Result<Vec<u8>, Problem> {
    if bytes > most {
        return Err(Problem::new(
            Code::TooLarge,
            format!("the tar stream has an extension header of {bytes} bytes, more than {most}"),
        )
        .hint("shorten the names of the files, or leave their attributes out"));
    }
    let mut content = Vec::new();
    entry.take(most).read_to_end(&mut content).map_err(broken)?;
    if content.len() as u64 == bytes { Ok(content) } else { Err(bad("the tar stream breaks off")) }
}

fn path_of<R: Read>(before: Extensions, entry: &tar::Entry<'_, R>, bytes: u64) -> Result<PathBuf, Problem> {
    let pax = before.pax.unwrap_or_default();
    if pax.bytes.is_some_and(|declared| declared != bytes) {
        return Err(bad("the tar stream says two sizes of one member"));
    }
    let path = before.long_name.or(pax.path).unwrap_or_else(|| entry.path_bytes().into_owned());
    if path.len() as u64 > MEMBER_PATH_BYTES {
        return Err(Problem::new(
            Code::TooLarge,
            format!("the tar stream has a path of {} bytes, more than {MEMBER_PATH_BYTES}", path.len()),
        )
        .hint("shorten the names of the files"));
    }
    if path.contains(&0) {
        return Err(bad("the tar stream has a path with a zero byte"));
    }
    Ok(PathBuf::from(OsString::from_vec(path)))
}

/// PAX records have the form `LENGTH KEY=VALUE\n`, where the length counts the whole record.
fn parse_pax(mut content: &[u8]) -> Result<Pax, Problem> {
    let wrong = || bad("the tar stream has a PAX extension that is not well formed");
    let mut pax = Pax::default();
    while !content.is_empty() {
        let space = content.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = content.get(..space).and_then(|digits| std::str::from_utf8(digits).ok());
        let length: usize = length.and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
        let record = content.get(space + 1..length).and_then(|record| record.strip_suffix(b"\n"));
        let record = record.ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (key, value) = (record.get(..equals).unwrap_or_default(), record.get(equals + 1..));
        let value = value.unwrap_or_default();
        match key {
            b"path" => pax.path = Some(value.to_owned()),
            b"size" => {
                let text = std::str::from_utf8(value).ok();
                pax.bytes = Some(text.and_then(|text| text.parse().ok()).ok_or_else(wrong)?);
            }
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err(bad("the tar stream has a file with holes").hint("make it without `--sparse`"));
            }
            _ => {}
        }
        content = content.get(length..).unwrap_or_default();
    }
    Ok(pax)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: u8, bytes: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(bytes);
        header.set_path("short").unwrap();
        header.set_mode(0o6777);
        header.set_cksum();
        header
    }

    fn entry(kind: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = header(kind, content.len() as u64).as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn record(key: &str, value: &str) -> String {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len();
        while length != rest.len() + length.to_string().len() {
            length = rest.len() + length.to_string().len();
        }
        format!("{length}{rest}")
    }

    type Members = Vec<(PathBuf, Kind, Vec<u8>)>;

    fn read(input: impl Read) -> Result<Members, Problem> {
        let mut members = Vec::new();
        each_member(input, 100, |path, facts, data| {
            let mut content = Vec::new();
            data.read_to_end(&mut content).map_err(broken)?;
            members.push((path, facts.kind, content));
            Ok(())
        })?;
        Ok(members)
    }

    #[test]
    fn names_come_from_where_the_format_has_them() {
        let long = "d/".repeat(100) + "f";
        let gnu = [entry(b'L', format!("{long}\0").as_bytes()), entry(b'0', b"x")].concat();
        assert_eq!(read(&gnu[..]).unwrap(), [(long.clone().into(), Kind::File, b"x".to_vec())]);
        let two_lines = record("path", "a\nb") + &record("size", "1") + &record("mtime", "1.5");
        let pax = [entry(b'g', b"9 a=b\n\n\n\n"), entry(b'x', two_lines.as_bytes()), entry(b'0', b"y")];
        assert_eq!(read(&pax.concat()[..]).unwrap(), [("a\nb".into(), Kind::File, b"y".to_vec())]);
        let mut built = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_entry_type(tar::EntryType::Regular);
        built.append_data(&mut header, &long, &b"zz"[..]).unwrap();
        let built = built.into_inner().unwrap();
        assert_eq!(read(&built[..]).unwrap(), [(long.into(), Kind::File, b"zz".to_vec())]);
    }

    #[test]
    fn what_is_no_file_and_no_folder_is_refused() {
        for kind in [b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'S', b'V'] {
            assert!(read(&entry(kind, b"content")[..]).is_err(), "{kind}");
        }
        assert_eq!(read(&entry(b'5', b"")[..]).unwrap().len(), 1);
        assert!(read(&entry(b'L', b"name")[..]).is_err(), "nothing follows");
        let twice = [entry(b'L', b"a"), entry(b'L', b"b"), entry(b'0', b"")].concat();
        assert!(read(&twice[..]).is_err());
        let sizes = [entry(b'x', record("size", "0").as_bytes()), entry(b'0', b"hidden")].concat();
        assert!(read(&sizes[..]).is_err());
    }

    /// A reader that counts what is read from it: an endless extension of any size.
    struct Endless {
        head: std::io::Cursor<Vec<u8>>,
        taken: std::rc::Rc<std::cell::Cell<u64>>,
    }

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let mut count = self.head.read(buffer)?;
            if count == 0 {
                buffer.fill(b'x');
                count = buffer.len();
            }
            self.taken.set(self.taken.get() + count as u64);
            assert!(self.taken.get() < 1 << 20, "it reads what it should refuse");
            Ok(count)
        }
    }

    proptest! {
        #[test]
        fn no_extension_is_read_beyond_its_bound(
            kind in prop::sample::select(vec![b'L', b'K', b'x', b'g']),
            bytes in EXTENSION_BYTES + 1..u64::MAX / 2,
        ) {
            let taken = std::rc::Rc::default();
            let head = std::io::Cursor::new(header(kind, bytes).as_bytes().to_vec());
            let problem = read(Endless { head, taken: std::rc::Rc::clone(&taken) }).unwrap_err();
            prop_assert_eq!(problem.code, Code::TooLarge);
            prop_assert!(taken.get() <= 512);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let _ = read(&bytes[..]);
            let _ = parse_pax(&bytes);
        }

        #[test]
        fn a_valid_stream_with_any_byte_changed_is_read_or_refused(at in 0_usize..2048, to in any::<u8>()) {
            let mut stream = [
                entry(b'x', record("path", "some/where").as_bytes()),
                entry(b'0', b"content"),
            ].concat();
            if let Some(byte) = stream.get_mut(at) {
                *byte = to;
            }
            let _ = read(&stream[..]);
        }
    }
}
