-- What is the topic with this id called?
-- A topic's id is unique over clusters, so a name that any capture saw holds for all.
-- topic_id: Kafka's 22 characters of base64url.
-- topic: its name.
SELECT topic_id, max(topic) AS topic
FROM topic_ids
GROUP BY topic_id
