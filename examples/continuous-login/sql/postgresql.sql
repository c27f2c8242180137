-- The same question for PostgreSQL 16: a date minus an integer is a date.
CREATE TABLE user_login (
    user_id    varchar(32) NOT NULL,
    login_time timestamp   NOT NULL
);

WITH login_days AS (
    SELECT DISTINCT user_id, login_time::date AS day
    FROM user_login
), keyed AS (
    SELECT user_id, day,
           day - (row_number() OVER (PARTITION BY user_id ORDER BY day))::int AS run
    FROM login_days
)
SELECT user_id, min(day) AS first_day, max(day) AS last_day, count(*) AS days
FROM keyed
GROUP BY user_id, run
HAVING count(*) >= 3
ORDER BY user_id, first_day;
