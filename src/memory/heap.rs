//! Gives memory that the daemon has freed back to the system. The allocator of glibc keeps what was freed in the arena of
//! each thread, so after large requests on many connections the daemon would stay as large as it was with all of them, and
//! each of its many arenas grows to a peak of its own. The calls that bound their number and give back what is free are
//! offered by no library safely; they take no pointers.
#![allow(unsafe_code)]

use std::time::Duration;

use super::Memory;

/// The interval at which the freed bytes are checked.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The bytes of charges given back that are worth a call, which looks through all arenas.
const WORTH_BYTES: u64 = 32 << 20;

/// The arenas of the allocator: the daemon's own threads are as many as processors, and those that only wait share.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Bounds the arenas of the allocator. Called before the first thread is started: an arena that exists stays.
#[cfg(target_env = "gnu")]
pub fn bound_arenas() {
    // SAFETY: the function takes numbers only, and no other thread allocates yet.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
}

/// Other allocators have no arenas.
#[cfg(not(target_env = "gnu"))]
pub fn bound_arenas() {}

/// Gives freed memory back again and again.
pub async fn keep_small(memory: Memory) {
    keep_small_every(CHECK_EVERY, memory).await;
}

async fn keep_small_every(interval: Duration, memory: Memory) {
    loop {
        tokio::time::sleep(interval).await;
        if memory.given_back() >= WORTH_BYTES {
            memory.forget_given_back();
            let _ = tokio::task::spawn_blocking(give_back_freed).await;
        }
    }
}

#[cfg(target_env = "gnu")]
fn give_back_freed() {
    // SAFETY: the function has no precondition, and locks each arena that it looks through.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give memory back by themselves.
#[cfg(not(target_env = "gnu"))]
fn give_back_freed() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryPurpose;
    use crate::protocol::principal::Principal;

    fn resident_pages() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// An arena that is not the first one begins where an address is a multiple of its largest size.
    #[cfg(target_env = "gnu")]
    fn later_arenas() -> usize {
        const LARGEST: u64 = 64 << 20;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let of_arena = |line: &&str| {
            let begin = line.split('-').next().and_then(|begin| u64::from_str_radix(begin, 16).ok());
            begin.is_some_and(|begin| begin % LARGEST == 0) && line.contains(" rw-p 00000000 00:00 0")
        };
        maps.lines().filter(of_arena).count()
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn many_threads_share_a_few_arenas() {
        bound_arenas();
        let before = later_arenas();
        let all_are_there = std::sync::Barrier::new(16);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let value = vec![1_u8; 10_000];
                    all_are_there.wait();
                    drop(value);
                });
            }
        });
        let most = usize::try_from(ARENAS).unwrap();
        assert!(later_arenas() < before + most, "{before} arenas became {}", later_arenas());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_many_small_values_took_goes_back_to_the_system() {
        const VALUES: usize = 100_000;
        const OFTEN: Duration = Duration::from_millis(10);
        const TRIES: u32 = 1_000;
        let memory = Memory::new(None, None);
        let charge = memory.pool(Principal::ANN).charge_anyway(MemoryPurpose::Requests, WORTH_BYTES);
        let mut values: Vec<Box<[u8; 1024]>> = (0..VALUES).map(|_| Box::new([1; 1024])).collect();
        // The last value stays, so the allocator cannot shrink its heap from the end.
        let last = values.pop();
        drop(values);
        let before = resident_pages();
        let keeping = tokio::spawn(keep_small_every(OFTEN, memory.clone()));
        drop(charge);
        for _ in 0..TRIES {
            if resident_pages() < before / 2 {
                break;
            }
            tokio::time::sleep(OFTEN).await;
        }
        let after = resident_pages();
        assert!(after < before / 2, "{before} pages became {after}");
        assert_eq!(memory.given_back(), 0);
        keeping.abort();
        drop(last);
    }
}
