//! Resumes a stream of events that broke off, and shows the steps of a slow request from one.

use std::time::Duration;

use crate::cli::client::http::{Client, Events};
use crate::cli::client::session_key::SessionKey;
use crate::cli::failure::Failure;
use crate::protocol::clock;
use crate::protocol::event::EventBody;
use crate::protocol::ids::Seq;
use crate::protocol::problem::Code;
use crate::protocol::text::one_line;

/// How often, and after what pause, a stream or an answer that broke off is requested again before the
/// command gives up. Each event that arrives starts the count anew.
pub(in crate::cli) const TRIES: u32 = 20;
pub(in crate::cli) const PAUSE: Duration = Duration::from_millis(500);

/// Waits for an answer about a session. If that takes longer than `slow`, those of the session's events since then that
/// are steps of the request are shown meanwhile, unless a program reads what is written. Errors of the events are ignored, since the request goes on.
pub(in crate::cli) async fn with_steps<T>(
    client: &Client,
    session: Option<&SessionKey>,
    slow: Duration,
    is_step: fn(&EventBody) -> bool,
    request: impl Future<Output = T>,
) -> T {
    let began = clock::now();
    let steps = async {
        tokio::time::sleep(slow).await;
        let Some(session) = session.filter(|_| client.tells_steps()) else { return };
        let path = format!("/v1/sessions/{session}/events");
        let Ok(mut events) = client.events::<()>(&path, None).await else { return };
        while let Ok(Some(event)) = events.next().await {
            // The stream begins with the session, whose earlier requests had steps, too.
            let is_new = event.at >= began;
            if let Some(sentence) = event.body.sentence().filter(|_| is_new && is_step(&event.body)) {
                eprintln!("{}", one_line(&sentence.text));
            }
        }
    };
    tokio::pin!(request);
    tokio::select! {
        answer = &mut request => answer,
        () = steps => request.await,
    }
}

/// How far a stream has been read.
pub(in crate::cli) struct StreamPosition {
    last: Seq,
    /// Tries since the last event.
    tries: u32,
}

impl StreamPosition {
    pub fn after(last: Seq) -> Self {
        Self { last, tries: 0 }
    }

    pub fn saw(&mut self, seq: Seq) {
        *self = Self::after(seq);
    }

    /// Opens the stream again after the last event that was seen. The daemon ends the stream of a client that reads
    /// too slowly, and all streams when it ends itself; cells and their events continue in both cases. `hint` says
    /// where to look if the stream cannot be resumed.
    pub async fn resume(
        &mut self,
        client: &Client,
        session: &SessionKey,
        hint: &str,
    ) -> Result<Events, Failure> {
        let path = format!("/v1/sessions/{session}/events?after={}", self.last);
        loop {
            if self.tries > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            self.tries += 1;
            match client.events::<()>(&path, None).await {
                Err(failure) if self.tries > TRIES || failure.has_code(Code::NoSuchSession) => {
                    return Err(failure.hint(hint));
                }
                Err(_) => {}
                Ok(_) if self.tries > TRIES => {
                    return Err(Failure::new("the daemon ends the stream again and again").hint(hint));
                }
                Ok(events) => return Ok(events),
            }
        }
    }
}
