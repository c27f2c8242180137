//! What an error of a provider means, and whether repeating the request may help.

use serde_json::Value;
use std::time::Duration;

use crate::protocol::chat::ModelFailureKind;
use crate::protocol::text::brief;

/// The most characters of a provider's message that are passed on.
const MESSAGE_CHARS: usize = 500;

/// One attempt that produced no reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AttemptFailure {
    pub kind: ModelFailureKind,
    pub message: String,
    /// Whether sending the request again may help.
    pub again: bool,
    pub retry_after: Option<Duration>,
}

impl AttemptFailure {
    /// A failure whose kind alone decides whether another attempt is worthwhile.
    pub fn new(kind: ModelFailureKind, message: impl Into<String>) -> Self {
        use ModelFailureKind as Kind;
        let again = match kind {
            Kind::RateLimited | Kind::Unreachable | Kind::ServerError | Kind::TimedOut | Kind::CutOff => true,
            Kind::Authentication
            | Kind::InvalidRequest
            | Kind::ContextTooLong
            | Kind::BadReply
            | Kind::NotRecorded
            | Kind::Cancelled
            | Kind::QuotaExceeded
            | Kind::Interrupted => false,
        };
        Self { kind, message: message.into(), again, retry_after: None }
    }

    pub fn bad_reply(message: impl Into<String>) -> Self {
        Self::new(ModelFailureKind::BadReply, message)
    }

    pub fn not_recorded(message: impl Into<String>) -> Self {
        Self::new(ModelFailureKind::NotRecorded, message)
    }

    /// The failure for an unsuccessful HTTP status.
    pub fn of_status(status: u16, body: &str, retry_after: Option<Duration>) -> Self {
        let parsed = serde_json::from_str::<Value>(body).ok();
        let error = parsed.as_ref().map_or(&Value::Null, |value| value.get("error").unwrap_or(value));
        let explanation = words(error).unwrap_or_else(|| clean(body));
        let kind = kind_of(status, error, &explanation);
        let mut message = format!("the provider answered {status}");
        if !explanation.is_empty() {
            message = format!("{message}: {explanation}");
        }
        if (300..400).contains(&status) {
            message = format!("the provider redirects ({status}), which is not followed; check `base_url`");
        }
        let spent = code_of(error).contains("insufficient_quota");
        let failure = Self::new(kind, message);
        Self { again: failure.again && !spent, retry_after, ..failure }
    }

    /// The failure for an error event within a stream that began successfully.
    pub fn of_event(error: &Value) -> Self {
        let explanation = words(error).unwrap_or_else(|| "it did not say which".to_owned());
        let status = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let kind = kind_of(status.unwrap_or(500), error, &explanation);
        Self::new(kind, format!("the provider broke off with an error: {explanation}"))
    }
}

fn kind_of(status: u16, error: &Value, explanation: &str) -> ModelFailureKind {
    let code = code_of(error);
    if status < 500 && too_long(&code, explanation) {
        return ModelFailureKind::ContextTooLong;
    }
    if code.contains("rate_limit") {
        return ModelFailureKind::RateLimited;
    }
    match status {
        401..=403 => ModelFailureKind::Authentication,
        408 => ModelFailureKind::TimedOut,
        429 => ModelFailureKind::RateLimited,
        500.. => ModelFailureKind::ServerError,
        _ => ModelFailureKind::InvalidRequest,
    }
}

/// Whether the conversation is too long. Providers share no error code for that; these are the phrases they use.
fn too_long(code: &str, explanation: &str) -> bool {
    let explanation = explanation.to_lowercase();
    let phrases = [
        "context length",
        "context window",
        "context size",
        "maximum context",
        "range of input length",
        "too many tokens",
        "prompt is too long",
    ];
    ["context_length", "context_size"].iter().any(|part| code.contains(part))
        || phrases.iter().any(|phrase| explanation.contains(phrase))
}

/// The `code` and `type` of an error, as far as they are strings.
fn code_of(error: &Value) -> String {
    let part = |key| error.get(key).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}", part("code"), part("type")).to_lowercase()
}

fn words(error: &Value) -> Option<String> {
    let text = ["message", "detail", "error"].iter().find_map(|key| error.get(key)?.as_str());
    text.or_else(|| error.as_str()).map(clean).filter(|text| !text.is_empty())
}

/// One line of bounded length without control characters that a terminal would interpret.
pub(super) fn clean(text: &str) -> String {
    brief(text, MESSAGE_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ModelFailureKind as Kind;
    use serde_json::json;

    #[test]
    fn each_status_has_its_meaning() {
        for (status, body, kind, again) in [
            (401, json!({"error": {"message": "Incorrect API key"}}), Kind::Authentication, false),
            (403, json!({}), Kind::Authentication, false),
            (404, json!({"error": "model not found"}), Kind::InvalidRequest, false),
            (400, json!({"error": {"code": "context_length_exceeded"}}), Kind::ContextTooLong, false),
            (
                400,
                json!({"message": "Range of input length should be [1, 30720]"}),
                Kind::ContextTooLong,
                false,
            ),
            (400, json!({"error": {"type": "exceed_context_size_error"}}), Kind::ContextTooLong, false),
            (400, json!({"error": {"message": "bad schema"}}), Kind::InvalidRequest, false),
            (408, json!({}), Kind::TimedOut, true),
            (429, json!({"error": {"message": "slow down"}}), Kind::RateLimited, true),
            (429, json!({"error": {"code": "insufficient_quota"}}), Kind::RateLimited, false),
            (500, json!(null), Kind::ServerError, true),
            (503, json!("overloaded"), Kind::ServerError, true),
            (302, json!(null), Kind::InvalidRequest, false),
        ] {
            let failure = AttemptFailure::of_status(status, &body.to_string(), None);
            assert_eq!((failure.kind, failure.again), (kind, again), "{status} {body}: {failure:?}");
        }
    }

    #[test]
    fn errors_in_a_stream_say_their_status_or_their_type() {
        let kind = |error: Value| AttemptFailure::of_event(&error).kind;
        assert_eq!(kind(json!({"code": 429, "message": "slow"})), Kind::RateLimited);
        assert_eq!(kind(json!({"type": "rate_limit_error"})), Kind::RateLimited);
        assert_eq!(kind(json!({"message": "boom"})), Kind::ServerError);
        assert_eq!(kind(json!("boom")), Kind::ServerError);
    }

    #[test]
    fn what_a_provider_says_is_made_harmless() {
        let failure = AttemptFailure::of_status(502, "<html>\u{1b}[31m\r\nBad\u{202e}  Gateway", None);
        assert_eq!(failure.message, "the provider answered 502: <html> Bad Gateway");
        assert_eq!(clean(&"é".repeat(100_000)).chars().count(), MESSAGE_CHARS);
    }
}
