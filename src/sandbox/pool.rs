//! The rules of the pool: which sandboxes are started before a session asks for one, which of them a session gets, and
//! when they give way. Time, memory and the sandboxes themselves come from the caller.

use std::time::{Duration, Instant};

use crate::protocol::receipt::{Backend, ImageFact};
use crate::sandbox::images::WantedImage;
use crate::sandbox::spec::SandboxRequest;
use crate::security_controls;

/// The most classes of which sandboxes wait; the one that was asked for least lately gives way to another.
const CLASSES: usize = 4;
/// How often a class has to be asked for before sandboxes of it wait, so that a single session costs nothing more.
const ASKED_BEFORE: u64 = 2;
/// A sandbox is started when nothing has happened for this long, because its start takes a processor for a while.
pub const QUIET: Duration = Duration::from_millis(200);
/// A machine that is never quiet gets its next sandbox after this time nevertheless.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause after a failure, which doubles with each further one up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// The properties of a sandbox that a request names. A waiting sandbox can serve a request of the same class.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub backend: Backend,
    /// The limits and the image, by its id.
    pub wanted: SandboxRequest,
    /// Whether modules are imported in advance. A script of a job sets variables that modules read when they are
    /// imported.
    pub preloads: bool,
}

impl Class {
    pub fn new(backend: Backend, wanted: &SandboxRequest, image: ImageFact, preloads: bool) -> Self {
        let wanted = SandboxRequest {
            image: WantedImage::Named(image.reference.clone()),
            first_image: Some(image),
            ..wanted.clone()
        };
        Self { backend, wanted, preloads }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most that wait of one class.
    pub size: usize,
    pub memory_bytes: u64,
    /// A class that was not asked for in this time is not kept any more.
    pub idle: Duration,
}

/// How busy the machine is, and what its waiting sandboxes take, at the time of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineLoad {
    /// Cells run.
    pub is_busy: bool,
    /// Less memory is available than is to be left to everything else.
    pub is_short: bool,
    /// The memory that the waiting sandboxes take.
    pub held_bytes: u64,
    /// The memory that one more sandbox is expected to take.
    pub next_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that got a waiting sandbox, and those for which there was none.
    pub hits: u64,
    pub misses: u64,
    pub starts: u64,
    /// Starts that failed, and sandboxes that ended while they waited.
    pub failures: u64,
}

struct RequestedClass {
    class: Class,
    times: u64,
    last: Instant,
}

/// The sandboxes that wait. `T` is one of them.
pub struct Shelf<T> {
    bounds: Bounds,
    /// The class that was asked for last is the last.
    classes: Vec<RequestedClass>,
    /// The one that has waited longest is the first.
    waiting: Vec<(Class, T)>,
    starting: Option<Class>,
    /// When a start was first put off because the machine was not quiet; none if none is put off.
    put_off: Option<Instant>,
    failures_in_a_row: u32,
    not_before: Option<Instant>,
    is_closed: bool,
    counts: Counts,
}

impl<T> Shelf<T> {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            classes: Vec::new(),
            waiting: Vec::new(),
            starting: None,
            put_off: None,
            failures_in_a_row: 0,
            not_before: None,
            is_closed: false,
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &T> {
        self.waiting.iter().map(|(_, sandbox)| sandbox)
    }

    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    pub fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// Takes the sandbox that has waited longest of those that can serve. No other request gets it any more.
    pub fn claim(&mut self, class: &Class, now: Instant) -> Option<T> {
        self.count_request(class, now);
        let found = self.waiting.iter().position(|(waits, _)| {
            waits == class || !security_controls::holds("waiting_sandboxes_are_of_the_class_asked_for")
        });
        match found {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        found.map(|index| self.waiting.remove(index).1)
    }

    fn count_request(&mut self, class: &Class, now: Instant) {
        let known = self.classes.iter().position(|asked| asked.class == *class);
        let times = known.map_or(0, |index| self.classes.remove(index).times);
        self.classes.push(RequestedClass { class: class.clone(), times: times + 1, last: now });
        if self.classes.len() > CLASSES {
            self.classes.remove(0);
        }
    }

    /// The class of the sandbox that is to be started now. There is no other until `started` is told.
    pub fn next(&mut self, now: Instant, load: MachineLoad) -> Option<Class> {
        let pauses = self.not_before.is_some_and(|at| now < at);
        let full = load.held_bytes.saturating_add(load.next_bytes) > self.bounds.memory_bytes;
        if self.is_closed || self.starting.is_some() || pauses || full || load.is_short {
            return None;
        }
        let Some(class) = self.lacking() else {
            self.put_off = None;
            return None;
        };
        let is_quiet = !load.is_busy
            && self.classes.last().is_none_or(|asked| now.saturating_duration_since(asked.last) >= QUIET);
        let since = *self.put_off.get_or_insert(now);
        if !is_quiet && now.saturating_duration_since(since) < PATIENCE {
            return None;
        }
        self.put_off = None;
        self.counts.starts += 1;
        self.starting = Some(class.clone());
        Some(class)
    }

    /// The class of which a sandbox is missing; the one that was asked for last goes first.
    fn lacking(&self) -> Option<Class> {
        let count = |class: &Class| self.waiting.iter().filter(|(waits, _)| waits == class).count();
        let lacks =
            |asked: &&RequestedClass| asked.times >= ASKED_BEFORE && count(&asked.class) < self.bounds.size;
        self.classes.iter().rev().find(lacks).map(|asked| asked.class.clone())
    }

    /// Puts the sandbox that was started to the others; `None` if it could not be started. Returns it if it is not
    /// wanted any more.
    pub fn started(&mut self, sandbox: Option<T>, now: Instant) -> Option<T> {
        let class = self.starting.take();
        let Some(sandbox) = sandbox else {
            self.failed(now);
            return None;
        };
        match class.filter(|_| !self.is_closed) {
            Some(class) => self.waiting.push((class, sandbox)),
            None => return Some(sandbox),
        }
        None
    }

    /// Takes out what has ended while it waited.
    pub fn remove_dead(&mut self, now: Instant, mut lives: impl FnMut(&mut T) -> bool) -> Vec<T> {
        let dead = self.remove_where(|_, sandbox| !lives(sandbox));
        if !dead.is_empty() {
            self.failed(now);
        } else if self.not_before.is_none_or(|at| now >= at) && !self.waiting.is_empty() {
            // The sandboxes that were started since the last failure live.
            self.failures_in_a_row = 0;
        }
        dead
    }

    /// Counts a failure, after which the next start waits longer each time.
    pub fn failed(&mut self, now: Instant) {
        self.counts.failures += 1;
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures_in_a_row.min(8)).min(LONGEST_PAUSE);
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        self.not_before = Some(now + pause);
    }

    /// Takes out what is not wanted any more: all of classes that are not asked for, and one more if memory is short.
    pub fn remove_surplus(&mut self, now: Instant, load: MachineLoad) -> Vec<T> {
        let idle = self.bounds.idle;
        self.classes.retain(|asked| now.saturating_duration_since(asked.last) < idle);
        let classes = std::mem::take(&mut self.classes);
        let mut surplus = self.remove_where(|class, _| !classes.iter().any(|asked| asked.class == *class));
        self.classes = classes;
        let must_shrink = load.is_short || load.held_bytes > self.bounds.memory_bytes;
        if must_shrink && surplus.is_empty() && !self.waiting.is_empty() {
            surplus.push(self.waiting.remove(0).1);
        }
        surplus
    }

    /// Takes out everything, for good.
    pub fn close(&mut self) -> Vec<T> {
        self.is_closed = true;
        self.remove_where(|_, _| true)
    }

    fn remove_where(&mut self, mut is_it: impl FnMut(&Class, &mut T) -> bool) -> Vec<T> {
        let removed = self.waiting.extract_if(.., |(class, sandbox)| is_it(class, sandbox));
        removed.map(|(_, sandbox)| sandbox).collect()
    }
}

#[cfg(test)]
mod tests;
