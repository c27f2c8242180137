//! The websocket codec by itself.

use std::path::{Path, PathBuf};

use super::*;
use crate::noise::{Noise, try_out};

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn request() -> String {
    format!(
        "GET /bridge HTTP/1.1\r\nHost: kernel\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
}

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    masked_with([0x11, 0x82, 0x33, 0xF4], first, payload)
}

fn masked_with(key: [u8; MASK_BYTES], first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = encode(0, &[payload]);
    frame[0] = first;
    frame[1] |= 0x80;
    let head = frame.len() - payload.len();
    unmask(&mut frame[head..], key);
    frame.splice(head..head, key);
    frame
}

fn final_frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    masked(0x80 | opcode, payload)
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Message>, Violation> {
    let (mut reader, mut messages) = (MessageReader::default(), Vec::new());
    for piece in pieces {
        reader.feed(piece);
        while let Some(message) = reader.next()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

#[test]
fn the_example_of_the_rfc() {
    let (answer, used) = answer_upgrade(format!("{}rest", request()).as_bytes()).unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\n"));
    assert_eq!(used, request().len());
}

#[test]
fn half_a_request_waits() {
    let whole = request();
    for size in 0..whole.len() {
        assert_eq!(answer_upgrade(&whole.as_bytes()[..size]), Ok(None));
    }
}

#[test]
fn what_is_refused() {
    for (good, bad) in [
        ("GET", "PUT"),
        ("HTTP/1.1", "HTTP/1.0"),
        ("Version: 13", "Version: 8"),
        ("Upgrade: websocket", "Upgrade: h2c"),
        ("Connection: Upgrade", "Connection: close"),
        ("Sec-WebSocket-Key", "X"),
        ("Sec-WebSocket-Key: ", "Sec-WebSocket-Key: AAAA"),
        ("Sec-WebSocket-Key: ", "Sec-WebSocket-Key: !"),
        ("Host: kernel", "Host kernel"),
        ("Host: kernel", "Host : kernel"),
        ("Host: kernel", "Upgrade: websocket"),
        ("Host: kernel", "A: b\r\nA: b"),
    ] {
        assert!(answer_upgrade(request().replace(good, bad).as_bytes()).is_err(), "{bad}");
    }
    let many = (0..70).map(|number| format!("A{number}: b\r\n")).collect::<Vec<_>>().concat();
    assert!(answer_upgrade(request().replace("Host", &format!("{many}Host")).as_bytes()).is_err());
    assert!(answer_upgrade(&[b'x'; UPGRADE_BYTES]).is_err());
}

#[test]
fn messages_of_all_sizes_in_any_pieces() {
    for size in [0, 1, 62, 63, 32_767, 32_768, 100_000] {
        let text = "é".repeat(size);
        let frame = final_frame(TEXT, text.as_bytes());
        assert_eq!(read([&frame[..]]), Ok(vec![Message::Text(text.clone())]));
        let (left, right) = frame.split_at(frame.len() * 2 / 3);
        assert_eq!(read([left, right]), Ok(vec![Message::Text(text)]));
    }
    let frame = final_frame(TEXT, b"slow");
    assert_eq!(read(frame.chunks(1)), Ok(vec![Message::Text("slow".into())]));
}

#[test]
fn control_frames_between_fragments() {
    let sent = [
        masked(TEXT, b"a"),
        final_frame(PING, b"p"),
        masked(CONTINUATION, b"b"),
        final_frame(CONTINUATION, b"c"),
    ]
    .concat();
    assert_eq!(read([&sent[..]]), Ok(vec![Message::Ping(b"p".to_vec()), Message::Text("abc".into())]));
}

#[test]
fn breaches_of_the_protocol() {
    let too_big = [&[0x81, 0xFF][..], &(FRAME_BYTES as u64 + 1).to_be_bytes()].concat();
    for (frame, code) in [
        (b"\x81\x01a".to_vec(), PROTOCOL_ERROR),
        (masked(0x80 | 0x10 | TEXT, b"a"), PROTOCOL_ERROR),
        (final_frame(0x7, b"a"), PROTOCOL_ERROR),
        (final_frame(BINARY, b"a"), PROTOCOL_ERROR),
        (final_frame(CONTINUATION, b"a"), PROTOCOL_ERROR),
        (masked(TEXT, b"a").repeat(2), PROTOCOL_ERROR),
        (masked(PING, b"a"), PROTOCOL_ERROR),
        (final_frame(CLOSE, &[b'a'; 126]), PROTOCOL_ERROR),
        (too_big, TOO_BIG),
        ([masked(TEXT, b""), masked(CONTINUATION, b"").repeat(FRAGMENTS)].concat(), TOO_BIG),
        (final_frame(TEXT, b"\xc3"), BAD_TEXT),
    ] {
        assert_eq!(read([&frame[..]]).unwrap_err().code, code);
    }
}

#[test]
fn fragments_together_are_bounded() {
    let half = vec![b'x'; FRAME_BYTES / 2 + 1];
    let sent = [masked(TEXT, &half), final_frame(CONTINUATION, &half)];
    assert_eq!(read(sent.iter().map(Vec::as_slice)).unwrap_err().code, TOO_BIG);
}

/// Bytes that the reader holds, also those of no use yet.
fn held(reader: &MessageReader) -> usize {
    reader.buffer.capacity() + reader.fragments.as_ref().map_or(0, Vec::capacity)
}

/// All messages up to the end or a violation, however the bytes are cut. What is announced takes no memory before it
/// is there: a buffer at most doubles.
fn read_all(pieces: &[&[u8]]) -> (Vec<Message>, Option<Violation>) {
    const LEAST: usize = 64;
    let (mut reader, mut messages, mut sent) = (MessageReader::default(), Vec::new(), 0);
    for piece in pieces {
        sent += piece.len();
        reader.feed(piece);
        loop {
            match reader.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(violation) => return (messages, Some(violation)),
            }
        }
        assert!(held(&reader) <= 4 * sent + LEAST, "{} bytes for {sent}", held(&reader));
    }
    (messages, None)
}

/// Messages and the frames of them: texts in fragments, with control frames between these.
fn conversation(noise: &mut Noise) -> (Vec<Message>, Vec<u8>) {
    let (mut messages, mut sent) = (Vec::new(), Vec::new());
    let key = |noise: &mut Noise| <[u8; MASK_BYTES]>::try_from(noise.bytes(MASK_BYTES)).unwrap();
    for _ in 0..noise.below(5) {
        let size = [0, 1, 60, 70, 140, 70_000][noise.below(6)];
        let text = noise.one_of(&["a", "é", "中", "\u{10FFFF}"]).repeat(noise.below(size + 1));
        let pieces = noise.cut(text.as_bytes());
        for (number, piece) in pieces.iter().enumerate() {
            if noise.below(4) == 0 {
                let size = noise.below(CONTROL_BYTES + 1);
                let payload = noise.bytes(size);
                sent.extend(masked_with(key(noise), 0x80 | PING, &payload));
                messages.push(Message::Ping(payload));
            }
            let opcode = if number == 0 { TEXT } else { CONTINUATION };
            let last = if number + 1 == pieces.len() { 0x80 } else { 0 };
            sent.extend(masked_with(key(noise), last | opcode, piece));
        }
        messages.push(Message::Text(text.clone()));
    }
    (messages, sent)
}

#[test]
fn messages_come_whole_however_they_are_fragmented_and_cut() {
    try_out(400, |noise| {
        let (messages, sent) = conversation(noise);
        assert_eq!(read_all(&noise.cut(&sent)), (messages, None));
    });
}

fn kept_inputs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/websocket")
}

/// However the bytes are cut, they are read or refused as they are in one piece. What breaks that is kept, and replayed by
/// every later run.
fn read_in_one_way(noise: &mut Noise, sent: &[u8]) {
    let pieces = noise.cut(sent);
    let outcome = std::panic::catch_unwind(|| assert_eq!(read_all(&pieces), read_all(&[sent]), "{sent:?}"));
    if let Err(panic) = outcome {
        std::fs::write(kept_inputs().join(format!("found-{}", std::process::id())), sent).unwrap();
        std::panic::resume_unwind(panic)
    }
}

/// The names of inputs begin with the status that refuses them, or with `ok`; with `found` if a fuzzer has left them there.
#[test]
fn inputs_that_were_kept_are_read_or_refused_as_they_are_named() {
    let names = std::fs::read_dir(kept_inputs()).unwrap().map(|entry| entry.unwrap().path());
    let inputs: Vec<(PathBuf, Vec<u8>)> =
        names.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    assert!(!inputs.is_empty());
    for (path, input) in &inputs {
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        let (messages, violation) = read_all(&[input]);
        let outcome = violation.as_ref().map_or_else(|| "ok".to_owned(), |refused| refused.code.to_string());
        assert_eq!(read_all(&bytes), (messages, violation), "{}", path.display());
        let name = path.file_name().unwrap().to_string_lossy();
        assert!(name.starts_with(&outcome) || name.starts_with("found-"), "{name}: {outcome}");
    }
    let telling: [&[u8]; 4] = [&[0x81], &[0xFE], &[0xFF; 9], &[0]];
    try_out(1000, |noise| {
        let mut sent = inputs[noise.below(inputs.len())].1.clone();
        noise.damage(&mut sent, 1, &telling);
        read_in_one_way(noise, &sent);
    });
}

#[test]
fn damage_is_read_or_refused_in_one_way_however_it_is_cut() {
    let telling: [&[u8]; 6] = [&[0x81], &[0x80], &[0xFE], &[0xFF; 9], &[0x88, 0x80], &[0]];
    try_out(2000, |noise| {
        let mut sent = conversation(noise).1;
        sent.truncate(2000);
        let places = 1 + noise.below(3);
        noise.damage(&mut sent, places, &telling);
        read_in_one_way(noise, &sent);
    });
}

#[test]
fn an_upgrade_is_answered_refused_or_waited_for_and_what_comes_first_decides_nothing() {
    let telling: [&[u8]; 5] = [b"\r\n", b"\r\n\r\n", b": ", b"Upgrade", b","];
    try_out(2000, |noise| {
        let mut sent = request().into_bytes();
        let places = 1 + noise.below(3);
        noise.damage(&mut sent, places, &telling);
        let whole = answer_upgrade(&sent);
        let early = answer_upgrade(&sent[..noise.below(sent.len())]);
        assert!(early == Ok(None) || early == whole, "{sent:?}");
        if let Ok(Some((answer, used))) = whole {
            assert!(sent[..used].ends_with(b"\r\n\r\n") && answer.ends_with(b"\r\n\r\n"));
        }
    });
}

#[test]
fn bytes_without_sense_never_do_more_than_violate() {
    try_out(4000, |noise| {
        let size = noise.below(60);
        let bytes = noise.bytes(size);
        read_all(&noise.cut(&bytes));
        let _ = answer_upgrade(&bytes);
    });
}

#[test]
fn frames_to_the_client() {
    assert_eq!(encode(TEXT, &[b"hi"]), b"\x81\x02hi");
    assert_eq!(encode(BINARY, &[b"a", &[b'b'; 199]])[..4], *b"\x82\x7e\x00\xc8");
    assert_eq!(encode(BINARY, &[&vec![b'b'; 70_000]])[..10], *b"\x82\x7f\0\0\0\0\0\x01\x11\x70");
    assert_eq!(encode_close(1002, "no"), b"\x88\x04\x03\xeano");
}
