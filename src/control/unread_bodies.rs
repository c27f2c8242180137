//! Reads what a client still sends after its request was answered. A request can be refused before its body is read; if
//! the connection were closed then, the client would fail to send the rest (`EPIPE`) and might never read the refusal.
//! So the part of the body that the handler did not read is read and discarded, up to a bound, while the answer is
//! being sent.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// The most bytes of a refused body that are discarded: twice the default limit for a body that is not a file.
const UNREAD_BYTES: u64 = 32 * 1024 * 1024;
/// The longest time for discarding a body.
const UNREAD_WITHIN: Duration = Duration::from_secs(10);

/// A middleware for all routes.
pub async fn read_the_rest(request: Request, next: Next) -> Response {
    // A client that sends `Expect` waits before it sends the body, so there is nothing to discard.
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return next.run(request).await;
    }
    let (give_back, mut given_back) = oneshot::channel();
    let lend = |body| Body::new(LentBody { body, has_ended: false, give_back: Some(give_back) });
    let response = next.run(request.map(lend)).await;
    if let Ok(body) = given_back.try_recv() {
        tokio::spawn(tokio::time::timeout(UNREAD_WITHIN, discard(body)));
    }
    response
}

async fn discard(mut body: Body) {
    let mut left = UNREAD_BYTES;
    while left > 0
        && let Some(Ok(frame)) = body.frame().await
    {
        left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
    }
}

/// A body that goes back to the middleware when the handler drops it before its end.
struct LentBody {
    body: Body,
    has_ended: bool,
    give_back: Option<oneshot::Sender<Body>>,
}

impl HttpBody for LentBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // After an error there is nothing more to read either.
        self.has_ended |= matches!(frame, Poll::Ready(None | Some(Err(_))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        if !self.has_ended
            && !self.body.is_end_stream()
            && let Some(give_back) = self.give_back.take()
        {
            let _ = give_back.send(std::mem::take(&mut self.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;
    use hyper_util::rt::TokioIo;
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    /// The answer that a client gets if it sends its whole body before it looks at the rest of the answer.
    async fn answer_to(body_bytes: usize) -> std::io::Result<String> {
        let refuse = async || StatusCode::NOT_FOUND;
        let router = Router::new().route("/", post(refuse)).layer(axum::middleware::from_fn(read_the_rest));
        let (mut client, server) = UnixStream::pair()?;
        let service = TowerToHyperService::new(router);
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
        tokio::spawn(serving);
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {body_bytes}\r\n\r\n");
        client.write_all(head.as_bytes()).await?;
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await?;
        // The answer arrives before the body is sent.
        client.write_all(&vec![b' '; body_bytes]).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    #[tokio::test]
    async fn who_is_refused_early_can_send_all_the_same() {
        assert_eq!(answer_to(16 << 20).await.unwrap(), "HTTP/1.1 404");
    }

    #[tokio::test]
    async fn nobody_sends_without_end() {
        let refused = answer_to(usize::try_from(UNREAD_BYTES).unwrap() * 2).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe);
    }
}
