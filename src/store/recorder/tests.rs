use super::*;
use crate::protocol::event::Event;
use crate::protocol::ids::SessionId;
use crate::protocol::principal::Principal;
use crate::store::Journal;

fn recorder(folder: &std::path::Path, spill_bytes: u64) -> (Arc<EventLog>, Recorder) {
    let log = Journal::open(folder).unwrap().log(SessionId::fresh()).unwrap();
    let spill = Spill::open(log.spill_folder(), spill_bytes).unwrap();
    (Arc::clone(&log), Recorder::new(log, spill, OutputCaps { head: 100, tail: 100 }))
}

fn events(log: &EventLog) -> Vec<EventBody> {
    while log.lag() > 0 {
        std::thread::yield_now();
    }
    let read = log.read(0, 1000).unwrap();
    read.iter().map(|event| serde_json::from_str::<Event>(&event.json).unwrap().body).collect()
}

fn write(recorder: &Recorder, cell: Option<CellNumber>, data: &[u8]) {
    recorder.output(&OutputFrame { stream: Stream::Stdout, cell, data }, 0);
}

#[test]
fn what_there_is_no_memory_for_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (log, recorder) = recorder(folder.path(), 1000);
    let memory = crate::memory::Memory::new(Some(300_000), None);
    log.charge_to(
        Principal::ANN,
        Arc::new(crate::store::account::UnlimitedAccount),
        memory.pool(Principal::ANN),
    );
    recorder.begin(1);
    for _ in 0..2 {
        let html = Value::String("z".repeat(200_000));
        recorder.display(1, Map::from_iter([("text/html".to_owned(), html)]), 0);
        events(&log);
    }
    assert!(
        (200_000..300_000).contains(&memory.taken(Principal::ANN).0),
        "{:?}",
        memory.taken(Principal::ANN)
    );
    let record = recorder.finish(1);
    assert_eq!((record.displays.len(), record.displays_dropped), (1, 1));
    assert_eq!(memory.taken(Principal::ANN).0, 0);
}

#[test]
fn a_character_that_arrives_in_halves_is_published_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (log, recorder) = recorder(folder.path(), 1000);
    recorder.begin(1);
    for byte in "中文".as_bytes() {
        write(&recorder, Some(1), &[*byte]);
    }
    let record = recorder.finish(1);
    assert_eq!(record.captured.stdout, "中文");
    let text: String = events(&log)
        .into_iter()
        .filter_map(|body| if let EventBody::Output { text, .. } = body { Some(text) } else { None })
        .collect();
    assert_eq!(text, "中文");
}

/// Replaces `[…]` with `said by a tool`.
struct Brackets;

impl Placeholders for Brackets {
    fn before_begun(&self, data: &[u8]) -> usize {
        let open = data.iter().rposition(|byte| *byte == b'[');
        open.filter(|open| !data[*open..].contains(&b']')).unwrap_or(data.len())
    }

    fn replaced(&self, data: &[u8], most_bytes: usize) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(data).unwrap().replace("[…]", "said by a tool");
        (text.len() <= data.len() + most_bytes && text.as_bytes() != data).then(|| text.into_bytes())
    }
}

#[test]
fn what_stands_for_something_is_replaced_also_where_it_comes_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let (log, recorder) = recorder(folder.path(), 1000);
    recorder.replace(Arc::new(Brackets));
    recorder.begin(1);
    for byte in "a […] b [".as_bytes() {
        write(&recorder, Some(1), &[*byte]);
        recorder.flush();
    }
    let record = recorder.finish(1);
    // The result still contains the placeholder; the caller that asks for the result replaces it.
    assert_eq!(record.captured.stdout, "a […] b [");
    let text: String = events(&log)
        .into_iter()
        .filter_map(|body| if let EventBody::Output { text, .. } = body { Some(text) } else { None })
        .collect();
    assert_eq!(text, "a said by a tool b [");
}

#[test]
fn beyond_the_spill_output_is_counted_and_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let (log, recorder) = recorder(folder.path(), 10);
    recorder.begin(1);
    for _ in 0..5 {
        write(&recorder, Some(1), b"12345678");
        recorder.flush();
    }
    let record = recorder.finish(1);
    assert_eq!(record.dropped_bytes, 30);
    let cuts =
        events(&log).into_iter().filter(|body| matches!(body, EventBody::OutputCut { cell: 1 })).count();
    assert_eq!(cuts, 1);
}

#[test]
fn output_of_cells_that_do_not_run_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (log, recorder) = recorder(folder.path(), 1000);
    write(&recorder, Some(7), b"forged");
    recorder.flush();
    assert_eq!(events(&log), []);
    write(&recorder, None, b"between cells\n");
    let expected = EventBody::Output {
        cell: None,
        stream: Stream::Stdout,
        text: "between cells\n".into(),
        base64: None,
    };
    assert_eq!(events(&log), [expected]);
}

#[test]
fn too_many_displays_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (_, recorder) = recorder(folder.path(), 1000);
    recorder.begin(1);
    for _ in 0..DISPLAYS + 2 {
        recorder.display(1, Map::new(), 0);
    }
    let record = recorder.finish(1);
    assert_eq!((record.displays.len(), record.displays_dropped), (DISPLAYS, 2));
}
