//! Remembers which account each user id belonged to when the daemon last saw it. If an id is given to another account
//! later, the new account does not inherit the sessions, jobs and volumes of the old one; the same holds for an id that had no
//! account before. Nor do they act in its name: programs of the host and the caller's folders are refused to a session
//! whose account no longer has its user id.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::folder::storage_problem;
use crate::sandbox::user_database::{self, Users};
use crate::security_controls;

/// The account name of each user id; `None` for an id without an account.
type Names = BTreeMap<Principal, Option<String>>;

/// The most bytes of the list that are read.
const LIST_BYTES: u64 = 4 * 1024 * 1024;

/// The remembered accounts, kept in a file in the daemon's home: one user id and name per line; only the id if there
/// was no account.
#[derive(Clone, Debug)]
pub struct UidAccounts {
    file: PathBuf,
    names: Arc<Mutex<Names>>,
    /// Held while what is left of a previous account is forgotten.
    handing_over: Arc<tokio::sync::Mutex<()>>,
    users: Users,
}

impl UidAccounts {
    pub fn load(file: PathBuf) -> Self {
        use std::io::Read;
        let mut text = String::new();
        if let Ok(list) = std::fs::File::open(&file) {
            let _ = list.take(LIST_BYTES).read_to_string(&mut text);
        }
        let parse = |line: &str| {
            let (uid, name) = line.split_once(' ').unwrap_or((line, ""));
            Some((Principal::new(uid.parse().ok()?), (!name.is_empty()).then(|| name.to_owned())))
        };
        let names = Arc::new(Mutex::new(text.lines().filter_map(parse).collect()));
        Self { file, names, handing_over: Arc::default(), users: user_database::users() }
    }

    /// The previous account of the id, if it differs from `name`. An id that had no account and still has none counts
    /// as the same.
    pub fn other_before(&self, user: Principal, name: Option<&str>) -> Option<Option<String>> {
        let names = self.names.lock();
        names.get(&user).filter(|before| before.as_deref() != name).cloned()
    }

    /// Whether the list has an entry for the id.
    pub fn knows(&self, user: Principal) -> bool {
        self.names.lock().contains_key(&user)
    }

    /// Records that the id belongs to this account, or to none. If it was another one's before, `forget` is called with
    /// that account first, once at a time: a request that is let in makes things under this id, which a second call
    /// would delete.
    pub async fn hand_over<F: Future<Output = Result<(), Problem>>>(
        &self,
        user: Principal,
        name: Option<&str>,
        forget: impl FnOnce(Option<String>) -> F,
    ) -> Result<(), Problem> {
        if self.other_before(user, name).is_none() {
            return self.note(user, name);
        }
        let _turn = self.handing_over.lock().await;
        // Another request may have done it meanwhile.
        if let Some(before) = self.other_before(user, name) {
            forget(before).await?;
        }
        self.note(user, name)
    }

    /// Records that the id belongs to this account, or to none.
    pub fn note(&self, user: Principal, name: Option<&str>) -> Result<(), Problem> {
        let mut names = self.names.lock();
        if names.get(&user).is_some_and(|before| before.as_deref() == name) {
            return Ok(());
        }
        let mut noted = names.clone();
        noted.insert(user, name.map(ToOwned::to_owned));
        write(&self.file, &noted).map_err(|error| storage_problem(&self.file, &error))?;
        *names = noted;
        Ok(())
    }

    /// Refuses what a session does on the machine as its owner, if the owner's id is another account by now than the
    /// one that made the session. The list has the latter, because it changes only when nothing of that account is left
    /// (`control::connected_user`). While the user database does not answer, the last known answer holds, which is the
    /// list's. This may wait for the user database, so it is called on threads of the user (`workspace::owner::run`).
    pub fn check(&self, user: Principal) -> Result<(), Problem> {
        if !self.knows(user) || !security_controls::holds("reused_ids_stop_acting") {
            return Ok(());
        }
        let Ok(who) = self.users.get(&user.uid()) else { return Ok(()) };
        let name = who.name.as_deref();
        let Some(before) = self.other_before(user, name) else { return Ok(()) };
        let what = format!(
            "this session was made by {}, and user id {user} is {} by now: it does nothing in that user's name any more",
            account_name(before.as_deref()),
            account_name(name)
        );
        Err(Problem::new(Code::Forbidden, what).hint(self.way_out(user)))
    }

    /// The refusal for the new owner of an id while sessions, jobs or volumes of the previous one remain.
    pub fn refusal(&self, user: Principal, before: Option<&str>) -> Problem {
        let what = format!(
            "user id {user} was {}, and its sessions, jobs, volumes or images are still here",
            account_name(before)
        );
        Problem::new(Code::Forbidden, what).hint(self.way_out(user))
    }

    fn way_out(&self, user: Principal) -> String {
        format!(
            "an administrator can remove them (`belljar ps --all` and `volume ls --all`, `belljar rm NAME@{user}`, `volume rm NAME@{user}` and `image rm NAME`); if it is the same person, root removes the line of {user} in `{}` and starts the daemon anew",
            self.file.display()
        )
    }
}

fn account_name(account: Option<&str>) -> String {
    account.map_or_else(|| "no account".to_owned(), |name| format!("the account `{name}`"))
}

fn write(file: &Path, names: &Names) -> std::io::Result<()> {
    let draft = file.with_extension("draft");
    let text = names.iter().fold(String::new(), |text, (user, name)| {
        let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        format!("{text}{user}{name}\n")
    });
    let mut options = std::fs::OpenOptions::new();
    let mut draft_file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    draft_file.write_all(text.as_bytes())?;
    draft_file.sync_all()?;
    std::fs::rename(draft, file)
}

#[cfg(test)]
impl UidAccounts {
    /// A list in which the id belongs to `before`, on a machine where every id is the account `ann`.
    pub(crate) fn of_ann(home: &Path, user: Principal, before: &str) -> Self {
        let users = user_database::Lookups::new(|_| {
            Ok(Arc::new(user_database::UserInfo { name: Some("ann".into()), ..Default::default() }))
        });
        let accounts = Self { users, ..Self::load(home.join("accounts")) };
        accounts.note(user, Some(before)).unwrap();
        accounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Principal = Principal::new(1000);
    const OTHER: Principal = Principal::new(1001);

    #[test]
    fn a_number_that_is_another_account_by_now_is_known() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("accounts");
        let accounts = UidAccounts::load(file.clone());
        assert_eq!(accounts.other_before(USER, Some("ann")), None);
        accounts.note(USER, Some("ann")).unwrap();
        let accounts = UidAccounts::load(file);
        assert_eq!(accounts.other_before(USER, Some("ann")), None);
        assert_eq!(accounts.other_before(USER, Some("bob")), Some(Some("ann".into())));
        assert_eq!(accounts.other_before(USER, None), Some(Some("ann".into())));
        assert_eq!(accounts.other_before(OTHER, None), None);
        assert!(!accounts.knows(OTHER));
        accounts.note(OTHER, None).unwrap();
        let accounts = UidAccounts::load(home.path().join("accounts"));
        assert!(accounts.knows(OTHER));
        assert_eq!(accounts.other_before(OTHER, None), None);
        assert_eq!(accounts.other_before(OTHER, Some("new")), Some(None));
        accounts.note(USER, Some("bob")).unwrap();
        assert_eq!(accounts.other_before(USER, Some("bob")), None);
    }

    /// What the first request makes after it was let in would be deleted by the second one otherwise.
    #[tokio::test]
    async fn of_two_first_requests_of_an_account_one_forgets_the_account_before() {
        let home = tempfile::tempdir().unwrap();
        let accounts = UidAccounts::load(home.path().join("accounts"));
        accounts.note(USER, Some("ann")).unwrap();
        let calls = Mutex::new(Vec::new());
        let request = || {
            accounts.hand_over(USER, Some("bob"), async |before| {
                tokio::task::yield_now().await;
                calls.lock().push(before);
                Ok(())
            })
        };
        let (first, second) = tokio::join!(request(), request());
        first.and(second).unwrap();
        assert_eq!(*calls.lock(), [Some("ann".to_owned())]);
        // A refusal leaves the id with the account before.
        let refused = accounts.hand_over(USER, None, async |_| Err(Problem::new(Code::Busy, "no"))).await;
        assert_eq!(refused.unwrap_err().code, Code::Busy);
        assert_eq!(accounts.other_before(USER, Some("bob")), None);
    }

    #[test]
    fn a_session_acts_only_for_the_account_that_made_it() {
        let home = tempfile::tempdir().unwrap();
        UidAccounts::of_ann(home.path(), USER, "ann").check(USER).unwrap();
        let accounts = UidAccounts::of_ann(home.path(), USER, "bob");
        let refused = accounts.check(USER).unwrap_err();
        assert_eq!(refused.code, Code::Forbidden);
        assert!(refused.message.contains("`bob`") && refused.message.contains("`ann`"), "{refused:?}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("belljar rm NAME@1000")));
        accounts.check(OTHER).unwrap();
        let silent =
            UidAccounts { users: user_database::Lookups::new(|_| Err(nix::Error::EIO)), ..accounts.clone() };
        silent.check(USER).unwrap();
        let gone = UidAccounts { users: user_database::Lookups::new(|_| Ok(Arc::default())), ..accounts };
        assert!(gone.check(USER).unwrap_err().message.contains("no account by now"));
    }
}
