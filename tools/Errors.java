// Prints Kafka's error codes, one a line: code, name, retriable, message; tab-separated.
// Run by refresh_definitions.py as a single-file program with the kafka-clients jars on the class path.
import org.apache.kafka.common.errors.RetriableException;

public class Errors {
    public static void main(String[] arguments) {
        for (var error : org.apache.kafka.common.protocol.Errors.values()) {
            String message = error.message() == null ? "" : error.message();
            System.out.println(error.code() + "\t" + error.name() + "\t"
                + (error.exception() instanceof RetriableException) + "\t" + message.replaceAll("\\s+", " "));
        }
    }
}
