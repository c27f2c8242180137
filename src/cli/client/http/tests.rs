use super::*;

#[test]
fn an_unknown_session_can_be_created() {
    let problem = Problem::new(Code::NoSuchSession, "there is no session `a`");
    let failure = with_hint(problem.clone(), "/v1/sessions/a/cells?stream=true");
    assert_eq!(failure.hint.as_deref(), Some("create it with `belljar new a`"));
    let failure = with_hint(problem.hint("look elsewhere"), "/v1/sessions/a");
    assert_eq!(failure.hint.as_deref(), Some("look elsewhere"));
    assert_eq!(with_hint(Problem::new(Code::Busy, "busy"), "/v1/sessions/a").hint, None);
}

#[test]
fn paths_are_escaped() {
    assert_eq!(escaped_path("a b/ä?#%.txt"), "a%20b/%C3%A4%3F%23%25.txt");
}

#[test]
fn no_terminal_obeys_an_answer() {
    let answer = JsonResponse { bytes: Bytes::from("{\"name\":\"a\u{9d}0;t\u{9c}\u{7f}\"}\n") };
    assert_eq!(answer.text(), r#"{"name":"a\u009d0;t\u009c\u007f"}"#);
}

/// A server that answers one connection with these pieces and returns the request that it got.
fn served(pieces: &'static [&'static str]) -> (tempfile::TempDir, Client, tokio::task::JoinHandle<String>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = vec![0; 4096];
        let length = stream.read(&mut asked).await.unwrap();
        for piece in pieces {
            stream.write_all(piece.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        String::from_utf8_lossy(&asked[..length]).into_owned()
    });
    (dir, Client::new(socket, None), server)
}

#[tokio::test]
async fn a_stream_is_read_to_its_end() {
    let (_dir, client, server) = served(&[
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\nid: 1\nev",
        "ent: reset\ndata: {\"seq\":1,\"at\":\"\",\"type\":\"reset\"}\n\nid: 2\nevent: problem\n",
        "data: {\"code\":\"events_gone\",\"message\":\"gone\"}\n\n",
    ]);
    let mut events = client.events::<()>("/v1/sessions/a/events?after=0", None).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().body, crate::protocol::event::EventBody::Reset);
    assert!(events.next().await.unwrap_err().has_code(Code::EventsGone));
    assert!(events.next().await.unwrap().is_none());
    assert!(server.await.unwrap().starts_with("GET /v1/sessions/a/events?after=0 HTTP/1.1\r\n"));
}

#[tokio::test]
async fn an_answer_that_is_no_success_is_a_problem() {
    let (_dir, client, server) = served(&[
        "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n",
        "{\"code\":\"no_such_session\",\"message\":\"no session `a`\"}",
    ]);
    let client = client.with_config(Some("/c.toml".into()));
    let Err(failure) = client.get("/v1/sessions/a").await else { panic!("no failure") };
    assert!(client.config.lock().unwrap().is_some(), "whose daemon it is was not said");
    assert_eq!((failure.message.as_str(), failure.exit), ("no session `a`", 125));
    assert_eq!(failure.hint.as_deref(), Some("create it with `belljar new a`"));
    server.await.unwrap();
}

#[tokio::test]
async fn what_a_daemon_did_not_read_before_its_end_goes_to_the_next_one() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let dir = tempfile::tempdir().unwrap();
    let (socket, moved) = (dir.path().join("s"), dir.path().join("moved"));
    let first = tokio::net::UnixListener::bind(&socket).unwrap();
    let client = Client::new(socket.clone(), None);
    let asking = tokio::spawn(async move { client.post("/v1/sessions", &1).await });
    // The first daemon accepts the connection, but does not read the request.
    let taken = first.accept().await.unwrap();
    let second = tokio::net::UnixListener::bind(&moved).unwrap();
    std::fs::rename(&moved, &socket).unwrap();
    taken.0.readable().await.unwrap();
    drop((taken, first));
    let (mut stream, _) = second.accept().await.unwrap();
    let mut asked = [0; 4096];
    let length = stream.read(&mut asked).await.unwrap();
    assert!(asked[..length].starts_with(b"POST /v1/sessions HTTP/1.1\r\n"));
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7").await.unwrap();
    assert_eq!(asking.await.unwrap().ok().unwrap().parse::<u8>().ok(), Some(7));
}

#[tokio::test]
async fn what_a_daemon_has_read_is_not_sent_again() {
    let (_dir, client, server) = served(&[]);
    let Err(failure) = client.post("/v1/sessions", &1).await else { panic!("no failure") };
    assert!(failure.hint.is_some_and(|hint| hint.contains("may have ended")));
    server.await.unwrap();
}

#[tokio::test]
async fn without_a_daemon_the_error_says_how_to_start_it() {
    let dir = tempfile::tempdir().unwrap();
    let client = Client::new(dir.path().join("none"), None);
    let Err(failure) = client.get("/v1/health").await else { panic!("no failure") };
    assert_eq!(failure.hint.as_deref(), Some("start it with `belljar daemon`"));
}
