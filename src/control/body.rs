//! JSON bodies and query strings: bounded, in time, and refused with the place of the mistake.

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use futures_util::{Stream, TryStreamExt, stream};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;

use super::peer::Place;
use super::problems::Refused;
use super::routes::App;
use crate::controls;
use crate::protocol::limits::REQUEST_BODY;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::values;

/// A JSON body; an empty one is `{}`.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let limit = controls::setting("body_size_limit", app.settings.api.body);
        let limit = limit.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let bytes = read(request.into_body(), limit).await?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            Problem::new(Code::BadRequest, format!("the body is not UTF-8: {error}"))
                .hint("send the text as UTF-8")
        })?;
        Ok(Self(parse(if text.trim().is_empty() { "{}" } else { text })?))
    }
}

pub async fn read(body: Body, limit: usize) -> Result<bytes::Bytes, Problem> {
    let collected = tokio::time::timeout(REQUEST_BODY, Limited::new(body, limit).collect()).await;
    match collected {
        Err(_) => Err(Problem::new(
            Code::TooSlow,
            format!("the body took longer than {} s", REQUEST_BODY.as_secs()),
        )),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::new(Code::TooLarge, format!("the body is larger than {limit} bytes"))
                .hint("send large data as a file (`belljar cp`), or raise `api.body`"))
        }
        Ok(Err(error)) => Err(Problem::new(Code::BadRequest, format!("the body could not be read: {error}"))),
    }
}

/// A body that is read bit by bit, each in time: whoever stops sending holds nothing for long.
pub fn in_time(body: Body) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + Unpin {
    each_within(REQUEST_BODY, body)
}

fn each_within(
    time: Duration,
    body: Body,
) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + Unpin {
    Box::pin(stream::unfold(body.into_data_stream(), move |mut body| async move {
        let chunk = match tokio::time::timeout(time, body.try_next()).await {
            Ok(Ok(chunk)) => Ok(chunk?),
            Ok(Err(error)) => Err(std::io::Error::other(error)),
            Err(_) => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("nothing came for {} s", time.as_secs()),
            )),
        };
        Some((chunk, body))
    }))
}

/// A file that is to be received takes one.
pub fn upload_place(app: &App, uid: u32) -> Result<Place, Problem> {
    app.uploads.take(uid).ok_or_else(|| {
        Problem::new(Code::TooMany, "too many files are being sent at once").hint("send some of them later")
    })
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let bad = |message: String| Problem::new(Code::BadRequest, message).hint("see `GET /openapi.json`");
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!(" at `{path}`") };
        bad(format!("the body is not what it should be{place}: {}", error.inner()))
    })?;
    deserializer.end().map_err(|error| bad(format!("something follows the JSON body: {error}")))?;
    values::check_integers(text)
        .map_err(|problem| Problem::new(Code::BadRequest, format!("the body cannot be taken: {problem}")))?;
    Ok(value)
}

/// A query string, with the mistake in words.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refused> {
        axum::extract::Query::try_from_uri(&parts.uri).map(|axum::extract::Query(value)| Self(value)).map_err(
            |error| Problem::new(Code::BadRequest, error.body_text()).hint("see `GET /openapi.json`").into(),
        )
    }
}

/// What stands between the slashes, with the mistake in words.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        axum::extract::Path::from_request_parts(parts, app)
            .await
            .map(|axum::extract::Path(value)| Self(value))
            .map_err(|error| {
                Problem::new(Code::BadRequest, error.body_text()).hint("see `GET /openapi.json`").into()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::api::RunCell;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn whoever_stops_sending_is_not_waited_for() {
        let first = stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"begun"))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let mut received = each_within(Duration::from_millis(10), body);
        assert_eq!(received.try_next().await.unwrap().unwrap(), "begun");
        assert_eq!(received.try_next().await.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_wrong_body_is_told_with_its_place() {
        let problem = parse::<RunCell>(r#"{"code": 1}"#).unwrap_err();
        assert!(problem.message.contains("at `code`"), "{}", problem.message);
        let problem = parse::<RunCell>(r#"{"code": "1", "tiemout_s": 3}"#).unwrap_err();
        assert!(problem.message.contains("tiemout_s"), "{}", problem.message);
        assert!(parse::<RunCell>(r#"{"code": "1"} x"#).is_err());
        assert!(parse::<RunCell>(r#"{"code": "1"}"#).is_ok());
        assert!(parse::<serde_json::Value>(r#"{"n": 99999999999999999999}"#).is_err());
    }
}
