//! Counts what the threads of a daemon allocate, each daemon for itself, so that tests at the same time do not matter.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// The counter of the daemon that the thread belongs to. It needs no allocation and no end of its own, as both would
    /// come back to the allocator.
    static COUNTER: Cell<Option<&'static AtomicUsize>> = const { Cell::new(None) };
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct CountingAllocator;

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count() {
    if let Ok(Some(counter)) = COUNTER.try_with(Cell::get) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The counter of one daemon. It is never freed, because threads may outlive the daemon.
#[derive(Clone, Copy)]
pub struct Allocations(&'static AtomicUsize);

impl Allocations {
    pub fn new() -> Self {
        Self(Box::leak(Box::default()))
    }

    /// What this thread allocates from now on is counted.
    pub fn count_this_thread(self) {
        COUNTER.set(Some(self.0));
    }

    pub fn made(self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
