-- What is the topic with this id called?
-- A topic's id is unique over clusters, so a name that any capture saw holds for all.
-- That of KRaft's own topic is the same in every cluster (`Uuid.METADATA_TOPIC_ID`), and no message need say its name.
-- topic_id: Kafka's 22 characters of base64url.
-- topic: its name.
SELECT topic_id, max(topic) AS topic
FROM (SELECT topic_id, topic FROM topic_ids UNION ALL SELECT 'AAAAAAAAAAAAAAAAAAAAAQ', '__cluster_metadata')
GROUP BY topic_id
