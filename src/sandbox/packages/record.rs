//! What the files of packages have to be: each package has a list of them, `RECORD`, with lengths and hashes. The key of a
//! set has the hashes of these lists in it, so it stands for the files themselves only if they are as listed.

use base64::Engine as _;
use std::collections::{BTreeMap, BTreeSet};

/// The end of the names of bytecode, which the installer makes anew: no list says what it has to be.
const BYTECODE: &str = ".pyc";
const SHA256: &str = "sha256=";

/// A file that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    pub bytes: u64,
    pub sha256: [u8; 32],
}

/// A file as a list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Relative to the folder of all packages.
    path: String,
    bytes: Option<u64>,
    /// SHA-256 from the list; `None` if the list has no hash or one of another kind.
    sha256: Option<[u8; 32]>,
}

impl ListedFile {
    pub fn path(&self) -> &str {
        &self.path
    }

    fn is(&self, found: &FoundFile) -> bool {
        self.bytes.is_none_or(|bytes| bytes == found.bytes)
            && self.sha256.is_none_or(|sha256| sha256 == found.sha256)
    }
}

/// The files of a list that can be checked: all but bytecode, and but what is outside of the folder of packages or has no
/// hash, as the list itself.
pub fn listed(record: &str) -> impl Iterator<Item = ListedFile> {
    record.lines().filter_map(|line| {
        // Only a path can have a comma in it.
        let mut fields = line.rsplitn(3, ',');
        let (bytes, hash, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = match path.strip_prefix('"').and_then(|path| path.strip_suffix('"')) {
            Some(quoted) => quoted.replace("\"\"", "\""),
            None => path.to_owned(),
        };
        let is_inside = !path.starts_with('/') && path.split('/').all(|part| part != "..");
        // As the paths of files that are found.
        let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        let path = parts.join("/");
        let is_checked = is_inside && !hash.is_empty() && !path.ends_with(BYTECODE);
        is_checked.then(|| ListedFile { bytes: bytes.parse().ok(), sha256: sha256(hash), path })
    })
}

fn sha256(hash: &str) -> Option<[u8; 32]> {
    let text = hash.strip_prefix(SHA256)?.trim_end_matches('=');
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// A file that is not what its list says. Lists also have files that no installer puts into the folder, so one that is not
/// there is no difference. Of a file that several packages have, the last one that was installed has to be what one of
/// their lists says.
pub fn first_difference<'a>(
    found: &BTreeMap<String, FoundFile>,
    listed: &'a [ListedFile],
) -> Option<&'a str> {
    let is_right = |file: &ListedFile| Some(file.is(found.get(&file.path)?));
    let right: BTreeSet<&str> =
        listed.iter().filter(|file| is_right(file) == Some(true)).map(ListedFile::path).collect();
    let mut wrong = listed.iter().filter(|file| is_right(file) == Some(false)).map(ListedFile::path);
    wrong.find(|path| !right.contains(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";

    fn found(files: &[(&str, &str)]) -> BTreeMap<String, FoundFile> {
        use sha2::Digest;
        let file =
            |text: &str| FoundFile { bytes: text.len() as u64, sha256: sha2::Sha256::digest(text).into() };
        files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
    }

    #[test]
    fn a_file_has_to_be_what_a_list_says() {
        let record = format!("a/b.py,sha256={EMPTY},0\na-1.dist-info/RECORD,,\n");
        let files: Vec<_> = listed(&record).collect();
        assert_eq!(first_difference(&found(&[("a/b.py", ""), ("unlisted", "x")]), &files), None);
        assert_eq!(first_difference(&found(&[("a/b.py", "x")]), &files), Some("a/b.py"));
        assert_eq!(first_difference(&found(&[("a/c.py", "")]), &files), None);
        for other in ["./a/b.py", "a//b.py", "a/./b.py"] {
            let files: Vec<_> = listed(&format!("{other},sha256={EMPTY},0\n")).collect();
            assert_eq!(first_difference(&found(&[("a/b.py", "x")]), &files), Some("a/b.py"), "{other}");
        }
        let longer: Vec<_> = listed(&format!("a/b.py,sha256={EMPTY},1\n")).collect();
        assert_eq!(first_difference(&found(&[("a/b.py", "")]), &longer), Some("a/b.py"));
        // Two packages that have the same file.
        let both: Vec<_> = files.into_iter().chain(longer).collect();
        assert_eq!(first_difference(&found(&[("a/b.py", "")]), &both), None);
    }

    #[test]
    fn paths_are_read_as_lists_write_them() {
        let record = format!(
            "\"a, \"\"b\"\".py\",sha256={EMPTY},0\n../../bin/x,sha256={EMPTY},0\n/etc/x,sha256={EMPTY},0\n\
             a/__pycache__/b.pyc,sha256={EMPTY},0\nno list\nc,sha512=abc,7\n"
        );
        let files: Vec<_> = listed(&record).collect();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a, \"b\".py", "c"]);
        assert_eq!((files[0].bytes, files[1].sha256), (Some(0), None));
    }
}
