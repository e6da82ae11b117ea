import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/** Counts records by key. Arguments: bootstrap servers, application id, topic, folder of its state. */
public class Totals {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.putAll(Map.of(
            "bootstrap.servers", arguments[0],
            "application.id", arguments[1],
            "state.dir", arguments[3],
            "default.key.serde", Serdes.ByteArraySerde.class.getName(),
            "default.value.serde", Serdes.ByteArraySerde.class.getName(),
            "processing.guarantee", "exactly_once_v2",
            "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "1000",
            "replication.factor", "1"));
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2]).groupByKey().count();
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
