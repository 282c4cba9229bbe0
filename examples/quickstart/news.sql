-- One dataset, one channel: whoever subscribes to a topic hears its news within a second or two.
CREATE STREAM DATASET News (id STRING, topic STRING, headline STRING) KEY (id) RETAIN 1 DAYS;

CREATE CONTINUOUS CHANNEL NewsAbout (topic STRING) AS
  SELECT n.id, n.headline FROM NEW News n WHERE n.topic = :topic;
