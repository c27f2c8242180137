//! What the machine's user database says of a user id: name, groups, and who lent the id. Nothing of that is ever taken
//! from a message.
//!
//! The database may lie on another machine and not answer. Each question has a thread of its own, so that nothing else
//! waits for it without an end: who asks waits for [`ANSWERED_WITHIN`] at most and then gets the last known answer. While
//! a question is still open, every other caller gets the last known answer at once.

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ffi::CString;
use std::hash::Hash;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::subordinate;
use super::workspace::owner::Ids;

/// How long an answer is used: after this time, new requests, cells and running streams see a change of groups.
pub const REMEMBERED: Duration = Duration::from_secs(5);
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// The most keys that are remembered.
const KEYS: usize = 1024;
/// The most questions at once, because one that hangs occupies a thread.
const QUESTIONS: usize = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// `None` for an id without an account, as are the ids below.
    pub name: Option<String>,
    pub ids: Option<Arc<Ids>>,
    /// The names of the groups, sorted.
    pub groups: Vec<String>,
    /// The user to whom `/etc/subuid` lends this user id.
    pub subordinate_to: Option<String>,
}

/// The database does not answer, and nothing is known from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// Questions of one kind and their last answers. Clones share them.
#[derive(Clone, Debug)]
pub struct Lookups<K, T> {
    question: fn(&K) -> nix::Result<T>,
    shared: Arc<(Mutex<LookupState<K, T>>, Condvar)>,
}

#[derive(Debug)]
struct LookupState<K, T> {
    entries: HashMap<K, Entry<T>>,
    open_questions: usize,
}

#[derive(Debug)]
struct Entry<T> {
    answer: Option<(Instant, T)>,
    /// When the question was put that is still open.
    asked: Option<Instant>,
}

impl<T: Clone> Entry<T> {
    fn fresh(&self) -> Option<T> {
        self.answer.as_ref().filter(|(at, _)| at.elapsed() < REMEMBERED).map(|(_, answer)| answer.clone())
    }
}

impl<K, T> Lookups<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + 'static,
{
    #[must_use]
    pub fn new(question: fn(&K) -> nix::Result<T>) -> Self {
        let known = LookupState { entries: HashMap::new(), open_questions: 0 };
        Self { question, shared: Arc::new((Mutex::new(known), Condvar::new())) }
    }

    /// The answer, if it is known and not old. This never waits.
    #[must_use]
    pub fn fresh(&self, key: &K) -> Option<T> {
        self.shared.0.lock().entries.get(key)?.fresh()
    }

    /// The answer, or the last known one where the database does not answer in time. This may wait for
    /// [`ANSWERED_WITHIN`], so it is not called on a thread that all users share.
    ///
    /// # Errors
    /// The database does not answer, and never did.
    pub fn get(&self, key: &K) -> Result<T, Unanswered> {
        let (known, changed) = &*self.shared;
        let mut known = known.lock();
        let mut give_up_at = Instant::now() + ANSWERED_WITHIN;
        let mut was_asked = false;
        loop {
            let entry = known.entries.get(key);
            if let Some(answer) = entry.and_then(Entry::fresh) {
                return Ok(answer);
            }
            match entry.and_then(|entry| entry.asked) {
                Some(since) => {
                    (was_asked, give_up_at) = (true, give_up_at.min(since + ANSWERED_WITHIN));
                }
                // The question was answered with an error.
                None if was_asked => break,
                None if known.open_questions < QUESTIONS => {
                    if !self.start_lookup(key, &mut known) {
                        break;
                    }
                    was_asked = true;
                }
                None => {}
            }
            if changed.wait_until(&mut known, give_up_at).timed_out() {
                break;
            }
        }
        let last = known.entries.get(key).and_then(|entry| entry.answer.clone());
        tracing::warn!(known = last.is_some(), "the machine's user database does not answer");
        last.map(|(_, answer)| answer).ok_or(Unanswered)
    }

    /// Looks the key up on a thread of its own; whether one could be started.
    fn start_lookup(&self, key: &K, known: &mut LookupState<K, T>) -> bool {
        let (lookups, asked_key) = (self.clone(), key.clone());
        let thread = std::thread::Builder::new().name("user-database".into());
        let begun = thread.spawn(move || {
            let answer = (lookups.question)(&asked_key);
            lookups.answered(&asked_key, answer.ok());
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "no thread can be started to ask the user database");
            return false;
        }
        known.open_questions += 1;
        known.make_room();
        let entry = known.entries.entry(key.clone()).or_insert(Entry { answer: None, asked: None });
        entry.asked = Some(Instant::now());
        true
    }

    fn answered(&self, key: &K, answer: Option<T>) {
        let (known, changed) = &*self.shared;
        let mut known = known.lock();
        known.open_questions -= 1;
        if let Some(entry) = known.entries.get_mut(key) {
            entry.asked = None;
            if let Some(answer) = answer {
                entry.answer = Some((Instant::now(), answer));
            }
        }
        changed.notify_all();
    }

    /// Makes every answer old.
    #[cfg(test)]
    pub(crate) fn age(&self) {
        for entry in self.shared.0.lock().entries.values_mut() {
            if let Some((at, _)) = &mut entry.answer {
                *at = at.checked_sub(2 * REMEMBERED).expect("the machine runs for longer");
            }
        }
    }
}

impl<K: Clone + Eq + Hash, T> LookupState<K, T> {
    /// Forgets the oldest answer when there are too many; a key that is being asked stays.
    fn make_room(&mut self) {
        if self.entries.len() < KEYS {
            return;
        }
        let answered = self.entries.iter().filter(|(_, entry)| entry.asked.is_none());
        let oldest = answered.min_by_key(|(_, entry)| entry.answer.as_ref().map(|(at, _)| *at));
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.entries.remove(&oldest);
        }
    }
}

/// What is known of users by their ids.
pub type Users = Lookups<u32, Arc<UserInfo>>;

/// The users of this machine, asked once for the whole process.
#[must_use]
pub fn users() -> Users {
    static USERS: LazyLock<Users> = LazyLock::new(|| Lookups::new(|uid| look_up(*uid).map(Arc::new)));
    USERS.clone()
}

/// Whether a group with this id has no name. Without an answer it counts as having one, because then no guest gets it.
pub fn is_nameless_group(gid: u32) -> bool {
    static NAMED: LazyLock<Lookups<u32, bool>> = LazyLock::new(|| {
        Lookups::new(|gid| Group::from_gid(Gid::from_raw(*gid)).map(|group| group.is_some()))
    });
    NAMED.get(&gid) == Ok(false)
}

/// The user id of an account.
pub fn uid_of(name: String) -> Option<u32> {
    static NAMES: LazyLock<Lookups<String, Option<u32>>> = LazyLock::new(|| {
        Lookups::new(|name| User::from_name(name).map(|user| user.map(|user| user.uid.as_raw())))
    });
    NAMES.get(&name).ok().flatten()
}

fn look_up(uid: u32) -> nix::Result<UserInfo> {
    let subordinate_to = subordinate::owner_of(uid);
    let Some(user) = User::from_uid(Uid::from_raw(uid))? else {
        return Ok(UserInfo { subordinate_to, ..UserInfo::default() });
    };
    let name = CString::new(user.name.as_str()).map_err(|_| nix::Error::EINVAL)?;
    let (mut ids, mut groups) = (Vec::new(), Vec::new());
    for gid in getgrouplist(&name, user.gid)? {
        ids.push(gid.as_raw());
        groups.extend(Group::from_gid(gid)?.map(|group| group.name));
    }
    groups.sort();
    groups.dedup();
    let ids = Arc::new(Ids { uid, gid: user.gid.as_raw(), groups: ids });
    Ok(UserInfo { name: Some(user.name), ids: Some(ids), groups, subordinate_to })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    #[test]
    fn names_and_groups_come_from_the_machine() {
        let root = users().get(&0).unwrap();
        assert_eq!(root.name.as_deref(), Some("root"));
        assert!(root.groups.contains(&"root".to_owned()), "{root:?}");
        assert_eq!(root.ids.as_ref().unwrap().gid, 0);
        assert_eq!(*users().get(&3_999_999_999).unwrap(), UserInfo::default());
        assert_eq!(uid_of("root".into()), Some(0));
        assert_eq!(uid_of("no-such-user".into()), None);
        assert!(is_nameless_group(3_999_999_999) && !is_nameless_group(0));
    }

    #[test]
    fn the_last_answer_holds_while_there_is_no_other() {
        static FAILS: AtomicBool = AtomicBool::new(false);
        let lookups: Lookups<u32, u32> =
            Lookups::new(|key| if FAILS.load(Ordering::SeqCst) { Err(nix::Error::EIO) } else { Ok(key + 1) });
        assert_eq!(lookups.get(&1), Ok(2));
        FAILS.store(true, Ordering::SeqCst);
        lookups.age();
        assert_eq!(lookups.fresh(&1), None);
        assert_eq!((lookups.get(&1), lookups.get(&5)), (Ok(2), Err(Unanswered)));
    }

    /// The database hangs on one key until the test ends: no caller waits for it twice, and other keys are answered.
    #[test]
    fn a_question_that_hangs_is_asked_once_and_holds_up_nobody_else() {
        static HANGS: AtomicBool = AtomicBool::new(false);
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let lookups: Lookups<u32, u32> = Lookups::new(|key| {
            if *key == 1 {
                ASKED.fetch_add(1, Ordering::SeqCst);
                while HANGS.load(Ordering::SeqCst) {
                    std::thread::park_timeout(Duration::from_millis(5));
                }
            }
            Ok(*key)
        });
        assert_eq!(lookups.get(&1), Ok(1));
        HANGS.store(true, Ordering::SeqCst);
        lookups.age();
        for _ in 0..1_000 {
            assert_eq!(lookups.get(&1), Ok(1));
        }
        assert_eq!((lookups.get(&2), ASKED.load(Ordering::SeqCst)), (Ok(2), 2));
        HANGS.store(false, Ordering::SeqCst);
    }

    #[test]
    fn as_many_keys_as_it_remembers() {
        let lookups: Lookups<usize, usize> = Lookups::new(|key| Ok(*key));
        for key in 0..KEYS + 10 {
            assert_eq!(lookups.get(&key), Ok(key));
        }
        assert_eq!(lookups.shared.0.lock().entries.len(), KEYS);
    }
}
