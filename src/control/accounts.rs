//! Remembers which account each user id belonged to when the daemon last saw it. If an id is given to another account
//! later, the new account does not inherit the sessions and jobs of the old one; the same holds for an id that had no
//! account before.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::protocol::problem::{Code, FREE_SPACE, Problem};

/// The account name of each user id; `None` for an id without an account.
type Names = BTreeMap<u32, Option<String>>;

/// The most bytes of the list that are read.
const LIST_BYTES: u64 = 4 * 1024 * 1024;

/// The remembered accounts, kept in a file in the daemon's home: one user id and name per line; only the id if there
/// was no account.
#[derive(Clone)]
pub struct Accounts {
    file: PathBuf,
    names: Arc<Mutex<Names>>,
}

impl Accounts {
    pub fn load(file: PathBuf) -> Self {
        use std::io::Read;
        let mut text = String::new();
        if let Ok(list) = std::fs::File::open(&file) {
            let _ = list.take(LIST_BYTES).read_to_string(&mut text);
        }
        let parse = |line: &str| {
            let (uid, name) = line.split_once(' ').unwrap_or((line, ""));
            Some((uid.parse().ok()?, (!name.is_empty()).then(|| name.to_owned())))
        };
        Self { file, names: Arc::new(Mutex::new(text.lines().filter_map(parse).collect())) }
    }

    /// The previous account of the id, if it differs from `name`. An id that had no account and still has none counts
    /// as the same.
    pub fn other_before(&self, uid: u32, name: Option<&str>) -> Option<Option<String>> {
        let names = self.names.lock();
        names.get(&uid).filter(|before| before.as_deref() != name).cloned()
    }

    /// Whether the list has an entry for the id.
    pub fn knows(&self, uid: u32) -> bool {
        self.names.lock().contains_key(&uid)
    }

    /// Records that the id belongs to this account, or to none.
    pub fn note(&self, uid: u32, name: Option<&str>) -> Result<(), Problem> {
        let mut names = self.names.lock();
        if names.get(&uid).is_some_and(|before| before.as_deref() == name) {
            return Ok(());
        }
        let mut noted = names.clone();
        noted.insert(uid, name.map(ToOwned::to_owned));
        write(&self.file, &noted).map_err(|error| {
            Problem::new(Code::Storage, format!("`{}` cannot be written: {error}", self.file.display()))
                .hint(FREE_SPACE)
        })?;
        *names = noted;
        Ok(())
    }

    /// The refusal for the new owner of an id while sessions or jobs of the previous one remain.
    pub fn refusal(&self, uid: u32, before: Option<&str>) -> Problem {
        let was = before.map_or_else(|| "no account".to_owned(), |name| format!("the account `{name}`"));
        let what = format!("user id {uid} was {was}, and its sessions or jobs are still here");
        Problem::new(Code::Forbidden, what).hint(format!(
            "an administrator can remove them (`belljar ps --all`, `belljar rm NAME@{uid}`); if it is the same person, root removes the line of {uid} in `{}` and starts the daemon anew",
            self.file.display()
        ))
    }
}

fn write(file: &Path, names: &Names) -> std::io::Result<()> {
    let draft = file.with_extension("draft");
    let text = names.iter().fold(String::new(), |text, (uid, name)| {
        let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        format!("{text}{uid}{name}\n")
    });
    let mut options = std::fs::OpenOptions::new();
    let mut written = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    std::fs::rename(draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_another_account_by_now_is_known() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("accounts");
        let accounts = Accounts::load(file.clone());
        assert_eq!(accounts.other_before(1000, Some("ann")), None);
        accounts.note(1000, Some("ann")).unwrap();
        let accounts = Accounts::load(file);
        assert_eq!(accounts.other_before(1000, Some("ann")), None);
        assert_eq!(accounts.other_before(1000, Some("bob")), Some(Some("ann".into())));
        assert_eq!(accounts.other_before(1000, None), Some(Some("ann".into())));
        assert_eq!(accounts.other_before(1001, None), None);
        assert!(!accounts.knows(1001));
        accounts.note(1001, None).unwrap();
        let accounts = Accounts::load(home.path().join("accounts"));
        assert!(accounts.knows(1001));
        assert_eq!(accounts.other_before(1001, None), None);
        assert_eq!(accounts.other_before(1001, Some("new")), Some(None));
        accounts.note(1000, Some("bob")).unwrap();
        assert_eq!(accounts.other_before(1000, Some("bob")), None);
    }
}
