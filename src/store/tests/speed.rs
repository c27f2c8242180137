use std::sync::mpsc;
use std::time::Instant;

use super::*;

/// Run with `--nocapture` to see the numbers.
#[tokio::test]
async fn appending_is_quick() {
    const MANY: u32 = 20_000;
    const FEW: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let log = journal.log(SessionId::fresh()).unwrap();
    let since = Instant::now();
    for cell in 0..u64::from(MANY) {
        log.append(started(cell));
    }
    let appended = since.elapsed();
    log.flushed().await;
    let committed = since.elapsed();
    println!(
        "{MANY} events: {:.0} appended a second, {:.0} committed a second, in {} batches",
        f64::from(MANY) / appended.as_secs_f64(),
        f64::from(MANY) / committed.as_secs_f64(),
        journal.core.queue.batches.lock().len(),
    );
    for durability in [Durability::Normal, Durability::Full] {
        let mut times: Vec<Duration> = (0..FEW)
            .map(|_| {
                let (latency_sender, latencies) = mpsc::channel();
                let since = Instant::now();
                let on_commit = move || {
                    let _ = latency_sender.send(since.elapsed());
                };
                log.append_intent_then(durability, EventBody::Reset, None, None, on_commit);
                let time = latencies.recv_timeout(PATIENCE).unwrap();
                // Commits are spread out, as those of cells are: the writer sleeps in between.
                std::thread::sleep(Duration::from_millis(1));
                time
            })
            .collect();
        times.sort();
        println!(
            "append to commit, {durability:?}: median {:?}, 99 of 100 within {:?}, at most {:?}",
            times[FEW / 2],
            times[FEW * 99 / 100],
            times[FEW - 1]
        );
    }
    let since = Instant::now();
    let read = bodies(&log).len();
    println!("{read} events read in steps of 7 in {:?}", since.elapsed());
}
